"""A client for programs without an event loop: every call waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Self

from ensemble_serving.answer import Classification
from ensemble_serving.client import Client, Image
from ensemble_serving.errors import EnsembleError
from ensemble_serving.transports import NoResponse


class BlockingClient:
    """A client of one server; see `Client`, which has the same arguments. Each thread needs its own.

    with BlockingClient("http://127.0.0.1:8000") as client:
        print(client.classify("photo.jpg", top_k=3).label)
        for image, answer in zip(files, client.classify_many(files)):
            print(image, answer)
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        """Set the server; see `Client`. Raises RuntimeError in a thread whose event loop runs: use `Client` there."""
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_made(given, options))

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection."""
        self.close()

    def close(self) -> None:
        """Close every connection."""
        with self._runner:
            self._runner.run(self._client.close())

    def classify(self, image: Image, **options: Any) -> Classification:
        """Classify an image; see `Client.classify` for the arguments and errors."""
        return self._runner.run(self._client.classify(image, **options))

    def classify_many(
        self, images: Iterable[Image], **options: Any
    ) -> Iterator[Classification | EnsembleError | NoResponse]:
        """Classify images, at most `concurrency` at a time; yield the answer or the error of each, in their order."""
        done: dict[int, Classification | EnsembleError | NoResponse] = {}
        answers, following = self._client.as_completed(images, **options), 0
        try:
            while (found := self._runner.run(_next(answers))) is not None:
                done[found[0]] = found[1]
                while following in done:
                    yield done.pop(following)
                    following += 1
        finally:
            self._runner.run(answers.aclose())


async def _made(given: tuple[Any, ...], options: dict[str, Any]) -> Client:
    return Client(*given, **options)


async def _next(
    answers: AsyncIterator[tuple[int, asyncio.Task[Classification]]],
) -> tuple[int, Classification | EnsembleError | NoResponse] | None:
    found = await anext(answers, None)
    if found is None:
        return None
    position, task = found
    try:
        return position, task.result()
    except (EnsembleError, NoResponse) as err:
        return position, err

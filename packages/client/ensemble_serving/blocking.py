"""A client for programs without an event loop: every call waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
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
        """Set the server; see `Client`."""
        self._client = Client(*given, **options)
        self._runner = asyncio.Runner()

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
        """Classify an image; see `Client.classify` for the arguments and errors.

        Raises:
            RuntimeError: an event loop runs in this thread; use `Client` there.
        """
        return self._runner.run(self._client.classify(image, **options))

    def classify_many(
        self, images: Iterable[Image], **options: Any
    ) -> Iterator[Classification | EnsembleError | NoResponse]:
        """Classify images, at most `concurrency` at a time; yield the answer or the error of each, in their order."""
        done: dict[int, asyncio.Task[Classification]] = {}
        answers, following = self._client.as_completed(images, **options), 0

        async def take() -> bool:
            async for position, task in answers:
                done[position] = task
                return True
            return False

        try:
            while self._runner.run(take()):
                while following in done:
                    task = done.pop(following)
                    error = task.exception()
                    yield error if isinstance(error, (EnsembleError, NoResponse)) else task.result()
                    following += 1
        finally:
            self._runner.run(answers.aclose())

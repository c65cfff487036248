"""Classifies many images with a running server, some at a time, and gives errors as JSON, as a command writes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from tqdm import tqdm

from ensemble_serving import Client as Connection
from ensemble_serving import EnsembleError, NoResponse
from scripts.errors import ScriptError

T = TypeVar("T")

# The environment variable that holds the API key.
KEY = "ENSEMBLE_API_KEY"
# How long an image is sent again that the server refuses for now, or whose connection was lost.
PATIENCE_S = 90.0
NO_ANSWER = "no_answer"


class Client:
    """A connection to one server; use it as an asynchronous context manager."""

    def __init__(self, url: str, concurrency: int = 1, ca: Path | None = None) -> None:
        """Set the server's root, how many requests are under way at a time, and a certificate to trust, PEM.

        Raises:
            ScriptError: the URL is none.
        """
        self._url = url
        try:
            self._connection = Connection(
                url,
                key=os.environ.get(KEY),
                ca_file=ca,
                concurrency=concurrency,
                patience_s=PATIENCE_S,
                reconnect_s=PATIENCE_S,
            )
        except ValueError as err:
            raise ScriptError(f"--url {url}: {err}") from err

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def classify(self, image: bytes, headers: tuple[tuple[str, str], ...] = (), **options: Any) -> dict[str, Any]:
        """Send an image's bytes, again while the server refuses it for now; options are a request's, as `top_k`.

        Returns:
            The server's JSON: an answer, or an `error`, whose `temporary` is true if the image may be answered later.

        Raises:
            ScriptError: there is no server, or another one than this project's.
        """
        try:
            answer = await self._connection.classify(image, headers=headers, **options)
        except NoResponse as err:
            if not self._connection.was_reached:
                raise no_answer(self._url, err) from err
            return {"error": {"code": NO_ANSWER, "message": str(err), "temporary": True}}
        except EnsembleError as err:
            if type(err) is EnsembleError:
                raise ScriptError(str(err)) from err
            return {"error": {**err.to_dict(), "temporary": err.retry or err.is_fault}}
        given: dict[str, Any] = msgspec.to_builtins(answer)
        return given


def no_answer(url: str, err: Exception) -> ScriptError:
    """Make the error that nothing answers at a URL."""
    return ScriptError(f"no answer from {url}: {err or type(err).__name__}; is the server running (ensemble serve)?")


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], at_a_time: int, total: int, unit: str = "image"
) -> None:
    """Work on `at_a_time` items at a time, with a progress bar; the first error ends all.

    The items are taken one by one, so that a large dataset is never in memory as a whole.
    """
    left = iter(items)
    with tqdm(total=total, unit=unit, mininterval=0.5, delay=1, leave=False, disable=None) as bar:

        async def take() -> None:
            for item in left:
                await work(item)
                bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_a_time, total)):
                    group.create_task(take())
        except* ScriptError as errors:
            raise errors.exceptions[0] from None

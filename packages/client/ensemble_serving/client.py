"""An asynchronous client of a running server: many images at a time, answers as they come."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ensemble_serving.answer import Classification
from ensemble_serving.errors import EnsembleError
from ensemble_serving.messages import Messages, Option, OverGrpc, OverHttp
from ensemble_serving.transports import NoConnection, NoResponse, Response, ResponseTimeout, connect
from ensemble_serving.transports.request import Headers
from ensemble_serving.url import parsed

# Between tries to reach a server that is not there: the first, and the longest, seconds.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0
# Encoded, or the path of a file.
Image = bytes | str | os.PathLike[str]


async def encoded(image: Image) -> bytes:
    """Read an image, unless it is encoded already.

    Raises:
        OSError: the file can't be read.
        TypeError: the image is neither bytes nor a path.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, os.PathLike)):
        return await asyncio.to_thread(Path(image).read_bytes)
    if isinstance(image, (bytearray, memoryview)):
        return bytes(image)
    raise TypeError(f"an image is bytes, as of a JPEG or PNG file, or a path; this is of type {type(image).__name__}")


class Client:
    """A client of one server, over HTTP or gRPC, for one event loop.

    A request that the server refuses for now is sent again after the time in the refusal, and one whose connection was
    lost after a while. Every other error is raised at once, as the class of `ensemble_serving.errors` that belongs to
    its code.

        async with Client("http://127.0.0.1:8000") as client:
            answer = await client.classify("photo.jpg", top_k=3)
            async for position, future in client.as_completed(images):
                print(position, future.result().label)
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        ca_file: Path | None = None,
        concurrency: int = 100,
        timeout_s: float = 60.0,
        patience_s: float = 60.0,
        reconnect_s: float = 60.0,
        model: str = "ensemble",
    ) -> None:
        """Set the server.

        Args:
            url: `http://host:port`, `https://...`, `grpc://host:port` or `grpcs://...`; of HTTP it may have a path.
            key: that the server requires.
            ca_file: certificates to trust, PEM; by default those of the system.
            concurrency: requests under way at most; further ones wait.
            timeout_s: of one request, seconds.
            patience_s: how long a request is sent again that the server refuses, seconds from the first refusal.
            reconnect_s: how long one is sent again that has no connection, or whose connection was lost, seconds from
                the first time; a server that was never there is not waited for.
            model: its name, over gRPC.

        Raises:
            ValueError: the URL is none of a server.
        """
        self._url = url
        parts = parsed(url)
        is_grpc = parts.scheme.startswith("grpc")
        self._messages: Messages = OverGrpc(model) if is_grpc else OverHttp(parts.path)
        headers = (("authorization", f"Bearer {key}"),) if key else ()
        connections = 1 if is_grpc else concurrency
        self._transport = connect(url, connections=connections, timeout_s=timeout_s, headers=headers, ca_file=ca_file)
        self._free = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._patience_s, self._reconnect_s = patience_s, reconnect_s
        self._closed = asyncio.Event()
        # Whether there was ever a connection to the server.
        self.was_reached = False

    async def __aenter__(self) -> Self:
        """Return the client itself; it connects when the first image is sent."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; what is under way or waits to be sent again fails."""
        self._closed.set()
        await self._transport.close()

    async def classify(self, image: Image, *, headers: Headers = (), **options: Option) -> Classification:
        """Classify an image.

        Args:
            image: an encoded image, as JPEG or PNG, or the path of a file with one.
            headers: of the request; over gRPC metadata.
            options: as `docs/api.md` lists them: `top_k`, `members`, `timings`, `timeout_ms`, ...

        Raises:
            EnsembleError: the server's error, by its code.
            NoResponse: there is no connection, or it was lost, for longer than `reconnect_s`.
            ResponseTimeout: no response came within the time-out.
            ValueError: a header can't be sent, because HTTP/1.1 has Latin-1 alone.
            OSError: the file can't be read.
            TypeError: the image is neither bytes nor a path.
        """
        request = self._messages.request(await encoded(image), options, headers)
        refused_at = lost_at = None
        pause_s = FIRST_WAIT_S
        error: EnsembleError | NoResponse
        wait_s: float | None
        while True:
            try:
                async with self._free:
                    response = await self._transport.send(request)
            except ResponseTimeout:
                raise
            except NoResponse as err:
                if isinstance(err, NoConnection) and not self.was_reached:
                    raise
                self.was_reached = True
                lost_at = lost_at or time.monotonic()
                error, wait_s, give_up = err, pause_s, lost_at + self._reconnect_s
                pause_s = min(2 * pause_s, LONGEST_WAIT_S)
            else:
                self.was_reached = True
                if response.ok:
                    return self._answer(response)
                refused_at = refused_at or time.monotonic()
                error, give_up = self._messages.error(response), refused_at + self._patience_s
                wait_s = response.retry_after_s
            if wait_s is None or time.monotonic() + wait_s > give_up or await self._closes_within(wait_s):
                raise error

    async def _closes_within(self, seconds: float) -> bool:
        """Wait, and give up waiting once the client is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._closed.wait()
        return False

    def _answer(self, response: Response) -> Classification:
        try:
            return self._messages.answer(response)
        except ValueError as err:
            text = response.body[:200].decode(errors="replace")
            raise EnsembleError(f"{self._url} responds {text!r}; is this the ensemble?") from err

    def submit(self, image: Image, *, headers: Headers = (), **options: Option) -> asyncio.Task[Classification]:
        """Start `classify` and return its future; cancelling the future disconnects."""
        return asyncio.get_running_loop().create_task(self.classify(image, headers=headers, **options))

    async def as_completed(
        self, images: Iterable[Image], *, headers: Headers = (), **options: Option
    ) -> AsyncIterator[tuple[int, asyncio.Task[Classification]]]:
        """Classify many images, of which at most `concurrency` are under way; they are read as they are sent.

        Args:
            images: encoded, or paths; an iterator that makes them one by one is never read ahead.
            headers: of every request.
            options: of every request.

        Yields:
            As they come, the position of an image and its future, which is done: `result()` gives the classification
            or raises the error.
        """
        done: asyncio.Queue[asyncio.Task[Classification]] = asyncio.Queue()
        under_way: dict[asyncio.Task[Classification], int] = {}
        left = enumerate(images)
        try:
            while True:
                while len(under_way) < self._concurrency and (following := next(left, None)) is not None:
                    position, image = following
                    task = self.submit(image, headers=headers, **options)
                    under_way[task] = position
                    task.add_done_callback(done.put_nowait)
                if not under_way:
                    return
                task = await done.get()
                yield under_way.pop(task), task
        finally:
            for task in under_way:
                task.cancel()

"""An asynchronous client of a running server: many images at a time, answers as they come."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ensemble_serving.answer import Classification
from ensemble_serving.errors import EnsembleError
from ensemble_serving.messages import Messages, Option, OverGrpc, OverHttp
from ensemble_serving.transports import NoConnection, NoResponse, Response, ResponseTimeout, Server, connect
from ensemble_serving.transports.request import Headers

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

    The client sends a refused request again after the time in the refusal, and a request whose connection was lost
    after a pause. It raises every other error at once, as the class of `ensemble_serving.errors` for its code.

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
            url: `http://host:port`, `https://...`, `grpc://host:port` or `grpcs://...`. An HTTP URL may have a path.
            key: the API key, if the server requires keys.
            ca_file: trusted certificates, PEM. Default: the system's.
            concurrency: the largest number of requests in flight; further requests wait.
            timeout_s: the time-out of a request, seconds.
            patience_s: seconds after the first refusal in which the client repeats a refused request.
            reconnect_s: seconds in which a client that was connected repeats a request without a connection.
            model: the model's name, for gRPC.

        Raises:
            ValueError: the URL is not a server's.
        """
        self._url = url
        headers = (("authorization", f"Bearer {key}"),) if key else ()
        server = Server(url, 1 if url.startswith("grpc") else concurrency, timeout_s, headers, ca_file)
        self._messages: Messages = OverGrpc(model) if server.is_grpc else OverHttp(server.parts.path)
        self._transport = connect(server)
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
        """Close every connection. Requests in flight and requests that wait for a repetition fail."""
        self._closed.set()
        await self._transport.close()

    async def classify(self, image: Image, *, headers: Headers = (), **options: Option) -> Classification:
        """Classify an image.

        Args:
            image: an encoded image, such as a JPEG, or the path of an image file.
            headers: headers of the request; over gRPC metadata.
            options: the parameters of `POST /classify`: `top_k`, `members`, `timings`, `timeout_ms`, ...

        Raises:
            EnsembleError: the server's error, by its code.
            NoResponse: there was no connection for longer than `reconnect_s`.
            ResponseTimeout: no response came within `timeout_s`.
            ValueError: a header has characters that the protocol can't carry: HTTP/1.1 Latin-1, gRPC ASCII.
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
        """Start `classify` and return its task; cancelling the task disconnects."""
        return asyncio.get_running_loop().create_task(self.classify(image, headers=headers, **options))

    async def as_completed(
        self, images: Iterable[Image], *, headers: Headers = (), **options: Option
    ) -> AsyncGenerator[tuple[int, asyncio.Task[Classification]]]:
        """Classify many images, at most `concurrency` at a time, and read each image when it is sent.

        Args:
            images: encoded images or paths. An iterator is never read ahead.
            headers: headers of every request.
            options: parameters of every request.

        Yields:
            The position of each answered image and its finished task, in the order of the answers. `result()` returns
            the classification or raises the error.
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

"""HTTP on a Unix socket, by uvicorn."""

import asyncio
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.ingress.http.server import TASK, HttpServer

# HAProxy decides how long it keeps a connection. If uvicorn closed one just as a request comes, that would be lost.
KEPT_S = 24 * 60 * 60
# How much of a body is read and dropped whose request was answered before it came, and for how long: if the connection
# were closed with unread bytes, it would be reset, and the client would lose the answer. A client that sends more has a
# moment to read the answer.
LINGER_BYTES, LINGER_S, MOMENT_S = 64 * 1024 * 1024, 30.0, 1.0


class OneWrite:
    """A transport that writes a response's headers together with its body, if that follows in the same turn.

    uvicorn writes them apart, and uvloop sends each at once, so HAProxy would be woken twice.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._headers = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write bytes, or keep them until the turn is over if they are a response's headers."""
        if self._headers:
            data, self._headers = self._headers + data, b""
        elif data.endswith(b"\r\n\r\n") and data.startswith(b"HTTP/1.1 ") and data[9:12] != b"100":
            self._headers = data
            asyncio.get_running_loop().call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._headers:
            self.write(b"")

    def close(self) -> None:
        """Write the kept bytes, and close the connection."""
        self._flush()
        self._transport.close()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's protocol: responses leave in one write, and what comes of an answered request is dropped.

    If a client disconnects, HAProxy closes the connection, and the work on the answer is cancelled.
    """

    _closing: asyncio.TimerHandle | None = None
    _dropped = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(cast("asyncio.Transport", OneWrite(transport)))

    def on_response_complete(self) -> None:
        """Go on to the next request; before that, drop the rest of this one."""
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._dropped = 0
            self._close_after(LINGER_S)

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body, or drop it."""
        super().on_body(body)
        if self._closing is not None and self._dropped <= LINGER_BYTES < (self._dropped + len(body)):
            self.flow.pause_reading()
            self._close_after(MOMENT_S)
        self._dropped += len(body)

    def on_message_complete(self) -> None:
        """Keep the connection open: the request is whole."""
        super().on_message_complete()
        self._close_after(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the lost connection, and cancel the work for the client."""
        self._close_after(None)
        scope = {} if self.cycle is None else cast("dict[str, Any]", self.cycle.scope)
        if (task := scope.get(TASK)) is not None:
            task.cancel()
        super().connection_lost(exc)

    def _close_after(self, seconds: float | None) -> None:
        """Close the connection after a time, or keep it."""
        if self._closing is not None:
            self._closing.cancel()
        self._closing = None if seconds is None else self.loop.call_later(seconds, self.transport.close)


class HttpListener:
    """Answers HTTP on a socket."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._uvicorn: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered yet."""
        return self._server.in_flight

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        config = uvicorn.Config(
            self._server.asgi,
            uds=str(path),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEPT_S,
        )
        self._uvicorn = uvicorn.Server(config)
        self._serving = asyncio.get_running_loop().create_task(self._uvicorn.serve())
        while not self._uvicorn.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Answer the requests that have arrived, and stop listening."""
        if self._uvicorn is not None and self._serving is not None:
            self._uvicorn.should_exit = True
            await self._serving

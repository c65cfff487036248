"""Connections to one server that are kept: who has room gets the next request, and further requests wait."""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import SplitResult

from ensemble_serving.transports.request import Headers, NoConnection, NoResponse, Request, Response, ResponseTimeout
from ensemble_serving.url import address


class Exchange(asyncio.Future[Response]):
    """A request on its way, and the future of its response; cancelling it disconnects."""

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        """Set the request."""
        super().__init__(loop=loop)
        self.request = request
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.sent = 0.0

    def cancel(self, msg: object = None) -> bool:
        """See `asyncio.Future.cancel`."""
        if not self.done() and self.connection is not None:
            self.connection.abandon(self)
        return super().cancel(msg)

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Set the response, whose last byte has just come."""
        if not self.done():
            self.set_result(Response(status, body, headers, self.sent, time.perf_counter()))

    def fail(self, error: NoResponse) -> None:
        """Set the error that there is no response."""
        if not self.done():
            self.set_exception(error)


class Connection(asyncio.Protocol, ABC):
    """A connection to the server; it reports to its pool when it has room again, and when it is lost."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another request may be sent now."""

    @abstractmethod
    def begin(self, exchange: Exchange) -> None:
        """Send a request; raises ValueError for one that can't be written."""

    @abstractmethod
    def abandon(self, exchange: Exchange) -> None:
        """Stop waiting for the response, and signal that to the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def abort(self) -> None:
        """Close the connection at once; every request under way fails."""
        self._transport.abort()


class Pool:
    """Sends requests; the request is written before `send` returns if a connection has room."""

    def __init__(
        self,
        url: SplitResult,
        most: int,
        timeout_s: float,
        ca_file: Path | None,
        protocol: str,
        make: Callable[[Pool], Connection],
    ) -> None:
        """Set the server.

        Args:
            url: of the server.
            most: connections.
            timeout_s: of a request, seconds.
            ca_file: certificates to trust, PEM.
            protocol: what TLS negotiates (ALPN).
            make: makes a connection of this pool.

        Raises:
            OSError: the file of certificates can't be read.
        """
        self._host, self._port = address(url)
        self._tls = None
        if url.scheme.endswith("s"):
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except OSError as err:
                # Its message does not name the file.
                raise OSError(f"{ca_file} can't be read as certificates: {err}") from err
            self._tls.set_alpn_protocols([protocol])
        self._most, self._timeout_s, self._make = most, timeout_s, make
        # Those with room, of which the one that was used last is used first.
        self._free: dict[Connection, None] = {}
        self._all: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()
        self._closed = False

    def send(self, request: Request) -> asyncio.Future[Response]:
        """See `Transport.send`."""
        loop = asyncio.get_running_loop()
        exchange = Exchange(request, loop)
        exchange.timer = loop.call_later(self._timeout_s, self._late, exchange)
        exchange.add_done_callback(_stop_timer)
        if self._closed:
            exchange.fail(NoResponse("the transport is closed"))
        elif self._free:
            self._begin(next(reversed(self._free)), exchange)
        else:
            self._waiting.append(exchange)
            self._connect()
        return exchange

    def _begin(self, connection: Connection, exchange: Exchange) -> None:
        exchange.connection = connection
        try:
            connection.begin(exchange)
        except ValueError as err:
            exchange.set_exception(err)
        if not connection.has_room:
            self._free.pop(connection, None)

    def _connect(self) -> None:
        """Open another connection, unless there are as many as there may be."""
        if len(self._all) + len(self._connecting) < self._most:
            task = asyncio.get_running_loop().create_task(self._opened())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _opened(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await loop.create_connection(
                    lambda: self._make(self), self._host, self._port, ssl=self._tls
                )
        except OSError as err:
            self._connecting.discard(cast(asyncio.Task[None], asyncio.current_task()))
            # Who waits behind the first waits for another connection, if there is or will be one.
            is_only = not self._all and not self._connecting
            while exchange := self._next():
                exchange.fail(NoConnection(f"no connection to {self._host}:{self._port}: {err or 'none in time'}"))
                if not is_only:
                    break
        else:
            self._all.add(connection)
            self.is_free(connection)

    def _next(self) -> Exchange | None:
        while self._waiting:
            if not (exchange := self._waiting.popleft()).done():
                return exchange
        return None

    def is_free(self, connection: Connection) -> None:
        """Give a connection that has room its next requests, or keep it."""
        self._free[connection] = None
        while connection.has_room and (exchange := self._next()):
            self._begin(connection, exchange)

    def send_again(self, exchange: Exchange) -> None:
        """Send a request anew, before others: the server has refused it unseen."""
        exchange.connection = None
        self._waiting.appendleft(exchange)
        self._connect()

    def is_lost(self, connection: Connection) -> None:
        """Forget a connection; who waits for one gets another."""
        self._all.discard(connection)
        self._free.pop(connection, None)
        if self._waiting and not self._closed:
            self._connect()

    def _late(self, exchange: Exchange) -> None:
        exchange.fail(ResponseTimeout(f"no response within {self._timeout_s:g} s"))
        if exchange.connection is not None:
            exchange.connection.abandon(exchange)

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        while exchange := self._next():
            exchange.fail(NoResponse("the transport was closed"))
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in tuple(self._all):
            connection.abort()
        # Transports close in a turn of the loop of their own.
        await asyncio.sleep(0)


def _stop_timer(exchange: asyncio.Future[Response]) -> None:
    assert isinstance(exchange, Exchange)
    if exchange.timer is not None:
        exchange.timer.cancel()

"""gRPC on a Unix socket, as HAProxy translates it: a call is a request of HTTP/1.1, and its status is in the trailers.

HAProxy speaks HTTP/2 with the clients anyway. gRPC's own server in Python, which would speak it once more, takes a
third of the time in which the interpreter computes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import grpc
import httptools
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from deployments.contract.caller import REQUEST_IDS
from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.listeners.grpc_call import OPENING, PREFIX, GrpcCall, Metadata, frame
from deployments.ingress.routes import Answered

logger = logging.getLogger("ray.serve")

# What a message may have besides its images, bytes.
BESIDES = 2 * 1024 * 1024
# How long the clients may take to read the last answers.
FLUSH_S, LOOK_EVERY_S = 5.0, 0.01
BACKLOG = 1024
# HAProxy allows 1,024 calls at a time.
MOST_STREAMS = 64
_, REQUEST_ID = REQUEST_IDS
Answer = Callable[[GrpcCall], Awaitable[Answered | None]]


class GrpcConnection(asyncio.Protocol):
    """A connection on which HAProxy brings calls, one after the other, as requests of HTTP/1.1.

    Attributes:
        call: the call under way; None for none.
        streams: whether that call is answered by a stream, which only its client or the end of this replica ends.
    """

    def __init__(
        self,
        answer: Answer,
        most_bytes: Callable[[], int],
        connections: set[GrpcConnection],
    ) -> None:
        """Create a connection.

        Args:
            answer: answers a call.
            most_bytes: returns the most bytes of a message.
            connections: the set that it is in while it lasts.
        """
        self._answer, self._most_bytes, self._connections = answer, most_bytes, connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._path, self._metadata = b"", Metadata()
        self.call: GrpcCall | None = None
        self.streams = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the new connection's transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        """End the call whose connection is lost: nobody waits for its answer any more."""
        self._transport = None
        self._connections.discard(self)
        self._end()

    def data_received(self, data: bytes) -> None:
        """Read arrived bytes."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()

    def close(self) -> None:
        """Close the connection when everything is written; a stream ends with a status."""
        if self.call is not None and self.streams:
            self.call.set_code(grpc.StatusCode.UNAVAILABLE)
            self.call.set_details("not_ready: this replica stops; call again")
            self._write(self.call, None)
        if self._transport is not None:
            self._transport.close()

    def on_message_begin(self) -> None:
        """Begin a call."""
        self._path, self._metadata = b"", Metadata()

    def on_url(self, url: bytes) -> None:
        """Append a part of the path."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, in lower case as in HTTP/2. Ignore a client's trailers, as HAProxy does."""
        if self.call is None:
            self._metadata.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Start the time of the call."""
        self.call = call = GrpcCall(self._path.decode("latin-1"), self._metadata, self._most_bytes())
        self._deadline = asyncio.get_running_loop().call_later(call.timeout_s, self._expire, call)

    def on_body(self, data: bytes) -> None:
        """Append a part of the message; refuse a message that is too large without waiting for its rest."""
        if (call := self.call) is None:
            return
        call.body += data
        if call.is_too_much:
            call.check()
        if call.code is not grpc.StatusCode.OK:
            self._write(call, None)
            self.close()

    def on_message_complete(self) -> None:
        """Answer the call."""
        if self.call is not None:
            self._task = asyncio.get_running_loop().create_task(self._answered(self.call))

    async def _answered(self, call: GrpcCall) -> None:
        message = None
        try:
            answer = await self._answer(call)
            if isinstance(answer, AsyncIterator):
                await self._stream(answer)
            else:
                message = answer
        except Exception:
            logger.exception("failed on a call of %s", call.path)
            call.set_code(grpc.StatusCode.INTERNAL)
        # Of a call that has expired, something may have turned the cancellation into another exception.
        if call is self.call:
            self._task = None
            self._write(call, message)

    async def _stream(self, messages: AsyncIterator[Message]) -> None:
        """Write messages as they come. The client ends the call at its deadline, and then the connection is lost."""
        self.streams = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._send(OPENING)
        async for each in messages:
            self._send(frame(each))

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _expire(self, call: GrpcCall) -> None:
        """Cancel the work on a call whose time is over, and do not wait for the rest of its message."""
        has_come = self._task is not None
        call.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
        call.set_details("deadline_exceeded: the call's deadline has passed")
        self._write(call, None)
        if not has_come:
            self.close()

    def _write(self, call: GrpcCall, message: Message | None) -> None:
        try:
            response = call.closing() if self.streams else call.response(message)
        except Exception:
            logger.exception("the answer to a call of %s can't be written", call.path)
            self.close()
        else:
            self._send(response)
        self._end()

    def _end(self) -> None:
        """End the call under way, if there is one."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
        self.call = self._task = self._deadline = None
        self.streams = False


class GrpcListener:
    """Answers gRPC on a socket.

    Attributes:
        services: the served services.
    """

    def __init__(
        self,
        server: GrpcServer,
        most_bytes: Callable[[], int],
        services: Sequence[ServiceDescriptor],
    ) -> None:
        """Create a listener.

        Args:
            server: answers calls.
            most_bytes: returns the most bytes of a request's images, which may change.
            services: the served services.
        """
        self._server, self._most_bytes, self.services = server, lambda: most_bytes() + BESIDES, services
        self._methods = {f"/{service.full_name}/{each.name}": each for service in services for each in service.methods}
        self._listening: asyncio.Server | None = None
        self._connections: set[GrpcConnection] = set()

    @property
    def in_flight(self) -> int:
        """The number of calls that are not answered yet, without streams: nobody can wait for their end."""
        return sum(each.call is not None for each in self._connections) - self.streams

    @property
    def streams(self) -> int:
        """The number of calls that are answered by streams."""
        return sum(each.streams for each in self._connections)

    def _has_room(self, call: GrpcCall) -> bool:
        """Tell whether one more stream fits; a sender may have half of all."""
        senders = [each.call.sender for each in self._connections if each.streams and each.call is not None]
        return len(senders) < MOST_STREAMS and senders.count(call.sender) < MOST_STREAMS // 2

    async def _answer(self, call: GrpcCall) -> Answered | None:
        """Answer a call; None where the call's status names the error."""
        method = self._methods.get(call.path)
        if method is None:
            call.code = grpc.StatusCode.UNIMPLEMENTED
            served = ", ".join(service.full_name for service in self.services)
            call.details = f"there is no method {call.path}; by grpc_servicer_functions the services are {served}"
            return None
        if not call.check():
            return None
        if method.server_streaming and not self._has_room(call):
            call.code = grpc.StatusCode.RESOURCE_EXHAUSTED
            call.details = f"overloaded: this replica has {self.streams} streams; call {method.name} later"
            return None
        body, call.body = bytes(memoryview(call.body)[PREFIX:]), bytearray()
        message = await self._server(call.path[1:], body, cast(grpc.ServicerContext, call))
        if (number := dict(call.metadata).get(REQUEST_ID)) is not None:
            call.trailers.append((REQUEST_ID, number))
        return message

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(
            lambda: GrpcConnection(self._answer, self._most_bytes, self._connections),
            path,
            backlog=BACKLOG,
        )

    async def close(self) -> None:
        """Write the answers, and stop listening."""
        if self._listening is None:
            return
        self._listening.close()
        for each in tuple(self._connections):
            each.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._connections:
                    await asyncio.sleep(LOOK_EVERY_S)

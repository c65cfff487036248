"""gRPC on a Unix socket, as HAProxy translates it: a call is a request of HTTP/1.1, and its status is in the trailers.

HAProxy speaks HTTP/2 with the clients anyway. gRPC's own server in Python, which would speak it once more, takes a
third of the time in which the interpreter computes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from deployments.contract.caller import REQUEST_IDS
from deployments.doors import absent_at
from deployments.ingress.grpc.server import NO_STREAM, GrpcServer
from deployments.ingress.listeners.grpc_call import PREFIX, GrpcCall
from deployments.ingress.listeners.grpc_connection import GrpcConnection

# What a message may have besides its images, bytes.
BESIDES = 2 * 1024 * 1024
# How long the clients may take to read the last answers.
FLUSH_S, LOOK_EVERY_S = 5.0, 0.01
BACKLOG = 1024
_, REQUEST_ID = REQUEST_IDS


class GrpcListener:
    """Answers gRPC on a socket.

    Attributes:
        services: those that are served.
    """

    def __init__(
        self,
        server: GrpcServer,
        most_bytes: Callable[[], int],
        services: Sequence[ServiceDescriptor],
        max_image_bytes: int = sys.maxsize,
    ) -> None:
        """Create a listener.

        Args:
            server: answers calls.
            most_bytes: returns the most bytes of a request's images, which may change.
            services: those that are served.
            max_image_bytes: the most bytes of an image.
        """
        self._server, self._most_bytes, self.services = server, lambda: most_bytes() + BESIDES, services
        self._methods = {f"/{service.full_name}/{each.name}": each for service in services for each in service.methods}
        self._max_image_bytes = max_image_bytes
        self._listening: asyncio.Server | None = None
        self._connections: set[GrpcConnection] = set()

    @property
    def in_flight(self) -> int:
        """The number of calls that are not answered yet."""
        return sum(each.call is not None for each in self._connections)

    def _check(self, call: GrpcCall) -> None:
        if (method := self._methods.get(call.path)) is not None:
            call.check_beginning(method.input_type, self._max_image_bytes)

    async def _answer(self, call: GrpcCall) -> Message | None:
        """Answer a call; None where the call's status names the error."""
        method = self._methods.get(call.path)
        if method is None or method.server_streaming:
            call.code = grpc.StatusCode.UNIMPLEMENTED
            served = ", ".join(service.full_name for service in self.services)
            unknown = f"there is no method {call.path}; by grpc_servicer_functions the services are {served}"
            call.details = f"{method.name} {NO_STREAM}" if method else absent_at(call.path) or unknown
            return None
        if not call.check():
            return None
        body, call.body = bytes(memoryview(call.body)[PREFIX:]), bytearray()
        message = await self._server(call.path[1:], body, call)
        if (number := dict(call.metadata).get(REQUEST_ID)) is not None:
            call.trailers.append((REQUEST_ID, number))
        return message

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(
            lambda: GrpcConnection(self._answer, self._most_bytes, self._check, self._connections),
            path,
            backlog=BACKLOG,
        )

    async def close(self) -> None:
        """Write what was answered, and stop listening."""
        if self._listening is None:
            return
        self._listening.close()
        for each in tuple(self._connections):
            each.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._connections:
                    await asyncio.sleep(LOOK_EVERY_S)

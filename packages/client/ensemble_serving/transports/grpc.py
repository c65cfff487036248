"""gRPC's unary calls by grpcio; messages stay bytes."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import grpc

from ensemble_serving.transports.request import (
    Headers,
    NoConnection,
    NoResponse,
    Request,
    Response,
    ResponseTimeout,
    ResponseTooLarge,
)
from ensemble_serving.transports.server import Server

Code = grpc.StatusCode
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", -1),
    # A proxy in this machine's environment is not meant for this server.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Each channel has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
)
# A server that has as many calls as it takes refuses a further one unseen: https://www.rfc-editor.org/rfc/rfc9113
REFUSED_STREAM = "RST_STREAM with error code 7"
# How grpcio begins what no gRPC server has said: there was none, a proxy answered, or the connection ended.
UNREACHED = "failed to connect"
NOT_OF_THE_SERVER = (
    UNREACHED,
    "Received http2 header with status",
    "Received RST_STREAM",
    "Socket closed",
    "Stream removed",
)
LATER_S = 1.0

# A name that ends in `-bin` has bytes: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
NAME = re.compile(r"(?!.*-bin$)[0-9a-z_.-]+")


def checked(headers: Headers) -> Headers:
    """Return headers that gRPC's metadata can have; raise ValueError for another one."""
    for name, value in headers:
        if not (NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise ValueError(f"gRPC can't send the header {name!r}: names are lower-case ASCII, values printable ASCII")
    return headers


class Grpc:
    """Channels to one server, which take turns."""

    def __init__(self, server: Server) -> None:
        """Set the server; raises OSError if a file of certificates can't be read."""
        self._server = server
        self._credentials = grpc.ssl_channel_credentials(*server.certificates()) if server.is_tls else None
        self._channels: list[grpc.aio.Channel] = []
        self._calls, self._is_closed = 0, False

    def send(self, request: Request) -> asyncio.Task[Response]:
        """See `Transport.send`."""
        return asyncio.get_running_loop().create_task(self._sent(request))

    async def _sent(self, request: Request) -> Response:
        timeout_s, began = self._server.timeout_s, time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                while (response := await self._call(request, began)) is None:
                    pass
                return response
        except TimeoutError:
            raise ResponseTimeout(f"no response within {timeout_s:g} s") from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if not self._is_closed:
                raise
            raise NoResponse("the transport was closed") from None

    async def _call(self, request: Request, began: float) -> Response | None:
        """Call once; None if the server has refused the call unseen."""
        if self._is_closed:
            raise NoResponse("the transport is closed")
        channel, metadata = self._channel(), checked((*self._server.headers, *request.headers))
        # Our own time-out comes first; the default deadline is for a server that it does not reach.
        deadline_s = self._server.timeout_s + LATER_S if request.timeout_s is None else max(0.0, request.timeout_s)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(request.path)
        try:
            body = await call(request.body, metadata=metadata, timeout=deadline_s)
        except grpc.aio.AioRpcError as err:
            return self._failed(channel, err, began)
        return Response(0, body, (), began, time.perf_counter())

    def _channel(self) -> grpc.aio.Channel:
        server = self._server
        turn = self._calls % (server.connections or 1)
        self._calls += 1
        if turn == len(self._channels):
            most = -1 if server.most_bytes is None else server.most_bytes
            # The certificate is for the host's name, though an address may be called.
            more = ("grpc.default_authority", server.authority), ("grpc.max_receive_message_length", most)
            target, options = f"[{server.ip}]" if ":" in server.ip else server.ip, (*OPTIONS, *more)
            if self._credentials is None:
                made = grpc.aio.insecure_channel(f"{target}:{server.port}", options)
            else:
                made = grpc.aio.secure_channel(f"{target}:{server.port}", self._credentials, options)
            self._channels.append(made)
        return self._channels[turn]

    def _failed(self, channel: grpc.aio.Channel, error: grpc.aio.AioRpcError, began: float) -> Response | None:
        """Return the error that a server has responded; raise NoResponse if it has responded none."""
        code, details = error.code(), error.details() or ""
        if code is Code.UNAVAILABLE and REFUSED_STREAM in details:
            return None
        is_lost = details.startswith(NOT_OF_THE_SERVER) or channel.get_state() is not grpc.ChannelConnectivity.READY
        if code is Code.UNAVAILABLE and is_lost:
            if UNREACHED in details:
                raise NoConnection(f"no connection to {self._server.host}:{self._server.port}: {details}")
            raise NoResponse(f"the server closed the connection: {details}")
        if code is Code.RESOURCE_EXHAUSTED and self._server.most_bytes is not None and "larger than max" in details:
            raise ResponseTooLarge(f"the response has more than {self._server.most_bytes} bytes: {details}")
        trailers = tuple((name, value) for name, value in error.trailing_metadata() or () if isinstance(value, str))
        return Response(code.value[0], details.encode(), trailers, began, time.perf_counter())

    async def close(self) -> None:
        """See `Transport.close`."""
        self._is_closed = True
        await asyncio.gather(*(channel.close() for channel in self._channels))

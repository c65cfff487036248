"""gRPC on a Unix socket, by gRPC's own server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from deployments.ingress.grpc.server import NO_STREAM, GrpcServer
from deployments.protocol.pool import POOL
from deployments.protocol.services import SERVICES, known_as

# What a message may have besides its images, bytes.
BESIDES = 2 * 1024 * 1024
# A message would be decompressed before its key is looked at, so the only encoding that is taken is identity, bit 0.
UNCOMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
# How long the clients may take to read the last answers.
FLUSH_S = 5.0
REQUEST_ID = "request_id"


class GrpcListener(grpc.GenericRpcHandler):
    """Answers gRPC on a socket.

    Attributes:
        in_flight: the number of calls that are not answered yet.
    """

    def __init__(self, server: GrpcServer, most_bytes: int) -> None:
        """Set what answers calls, and the most bytes of a request's images."""
        self._answer, self._most_bytes = server, most_bytes
        self._server: grpc.aio.Server | None = None
        self._handlers = {
            f"/{service.full_name}/{method.name}": self._handler(method)
            for service in SERVICES
            for method in service.methods
        }
        self.in_flight = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call; None where there is no such method."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: MethodDescriptor) -> Any:
        name = known_as(method)
        if method.server_streaming:

            async def unimplemented(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} {NO_STREAM}")

            return grpc.stream_stream_rpc_method_handler(unimplemented)

        async def unary(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            self.in_flight += 1
            try:
                answer = await self._answer(name, body, context)
                number = dict(context.invocation_metadata() or ()).get(REQUEST_ID)
                if number is not None:
                    context.set_trailing_metadata((*(context.trailing_metadata() or ()), (REQUEST_ID, number)))
                return answer.SerializeToString()
            finally:
                self.in_flight -= 1

        return grpc.unary_unary_rpc_method_handler(unary)

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        options = [("grpc.max_receive_message_length", self._most_bytes + BESIDES), UNCOMPRESSED]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        # HAProxy refuses it to clients where there are keys.
        names = sorted({name.split("/")[1] for name in self._handlers})
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server, POOL)
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def close(self) -> None:
        """Answer what has arrived, and stop listening."""
        if self._server is not None:
            await self._server.stop(FLUSH_S)

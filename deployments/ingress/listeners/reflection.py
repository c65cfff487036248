"""gRPC's reflection on a Unix socket, by gRPC's own server: its calls are streams, which only HTTP/2 has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ensemble_serving.protocol.pool import POOL


class ReflectionListener:
    """Describes the services of `GrpcListener`. HAProxy refuses it to clients where there are keys."""

    in_flight = 0

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        """Set the services to describe."""
        self._names = sorted(service.full_name for service in services)
        self._server: grpc.aio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        self._server = grpc.aio.server()
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        reflection.enable_server_reflection([*self._names, reflection.SERVICE_NAME], self._server, POOL)
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def close(self) -> None:
        """End the streams, and stop listening."""
        if self._server is not None:
            await self._server.stop(None)

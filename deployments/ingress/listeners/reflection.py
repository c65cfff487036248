"""gRPC's reflection on a Unix socket, by gRPC's own server: its calls are streams, which only HTTP/2 has."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ensemble_serving.protocol.pool import POOL


class ReflectionListener:
    """Describes the services of `GrpcListener`. HAProxy refuses it to clients where there are keys."""

    in_flight = 0

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        """Set the services to describe."""
        self._services = services
        self._server: grpc.aio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen on a socket."""
        self._server = grpc.aio.server()
        for file in (reflection_pb2.DESCRIPTOR, *(service.file for service in self._services)):
            _add(file)
        names = sorted(service.full_name for service in self._services)
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server, POOL)
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def close(self) -> None:
        """End the streams, and stop listening."""
        if self._server is not None:
            await self._server.stop(None)


def _add(file: FileDescriptor) -> None:
    """Add a file, and before it the files that it imports, to the described pool; a protocol may have its own."""
    for imported in file.dependencies:
        _add(imported)
    # Where the pool has another file of the name, that one is described.
    with suppress(TypeError):
        POOL.AddSerializedFile(file.serialized_pb)

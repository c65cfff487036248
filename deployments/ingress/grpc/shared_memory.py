"""gRPC: registering system shared memory, an extension of the Open Inference Protocol."""

from __future__ import annotations

from google.protobuf.message import Message

from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.service import Service
from deployments.ingress.shared_memory import Region
from deployments.observe.observer import Call
from deployments.protocol import inference_pb2 as pb


class SharedMemory:
    """Answers the extension's calls."""

    def __init__(self, service: Service) -> None:
        """Set where registrations are kept."""
        self._regions = service.regions

    def calls(self) -> Calls:
        """Its methods."""
        return {
            "SystemSharedMemoryStatus": Rpc(self._status, pb.SystemSharedMemoryStatusResponse),
            "SystemSharedMemoryRegister": Rpc(self._register, pb.SystemSharedMemoryRegisterResponse),
            "SystemSharedMemoryUnregister": Rpc(self._unregister, pb.SystemSharedMemoryUnregisterResponse),
        }

    async def _status(self, request: pb.SystemSharedMemoryStatusRequest, _: Call) -> Message:
        answer = pb.SystemSharedMemoryStatusResponse()
        for region in self._regions.listed(request.name):
            told = answer.regions[region.name]
            told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.byte_size
        return answer

    async def _register(self, request: pb.SystemSharedMemoryRegisterRequest, _: Call) -> Message:
        self._regions.register(Region(request.name, request.key, request.offset, request.byte_size))
        return pb.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: pb.SystemSharedMemoryUnregisterRequest, _: Call) -> Message:
        self._regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

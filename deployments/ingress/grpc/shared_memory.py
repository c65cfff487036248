"""gRPC: registering system shared memory, an extension of the Open Inference Protocol."""

from __future__ import annotations

from google.protobuf.message import Message
from msgspec.structs import asdict

from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.service import Service
from deployments.ingress.shared_memory import Region
from deployments.observe.observer import Call
from ensemble_serving.protocol import inference_pb2 as pb


def calls(service: Service) -> Calls:
    """The extension's methods."""
    regions = service.regions

    async def status(request: pb.SystemSharedMemoryStatusRequest, _: Call) -> Message:
        made = pb.SystemSharedMemoryStatusResponse.RegionStatus
        listed = {region.name: made(**asdict(region)) for region in regions.listed(request.name)}
        return pb.SystemSharedMemoryStatusResponse(regions=listed)

    async def register(request: pb.SystemSharedMemoryRegisterRequest, _: Call) -> Message:
        regions.register(Region(request.name, request.key, request.offset, request.byte_size))
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(request: pb.SystemSharedMemoryUnregisterRequest, _: Call) -> Message:
        regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    return {
        "SystemSharedMemoryStatus": Rpc(status),
        "SystemSharedMemoryRegister": Rpc(register),
        "SystemSharedMemoryUnregister": Rpc(unregister),
    }

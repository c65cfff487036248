"""The replica's gRPC server, without HAProxy in front of it."""

import asyncio

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from deployments.protocol import inference_pb2 as pb
from deployments.protocol.services import SERVICES
from graph.front.grpc import GrpcListener

METHOD = "/inference.GRPCInferenceService/ServerLive"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_message_is_refused_before_it_is_decompressed(tmp_path, compression):
    got = []

    async def answer(name, body, context):
        got.append(len(body))
        return pb.ServerLiveResponse(live=True)

    listener = GrpcListener(answer, 2**25)
    await listener.open(tmp_path / "s")
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 's'}") as channel:
        ask = channel.unary_unary(METHOD)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(bytes(2**25), compression=compression)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        await ask(bytes(1000))
    await listener.close()
    assert got == [1000]


def described(path):
    """Each service that reflection lists, with the names of its methods, as a client reads them."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()]
        return {service.full_name: {method.name for method in service.methods} for service in services}


async def test_reflection_describes_every_service(tmp_path):
    listener = GrpcListener(None, 1024)
    await listener.open(tmp_path / "grpc.sock")
    try:
        services = await asyncio.to_thread(described, tmp_path / "grpc.sock")
    finally:
        await listener.close()
    assert services.pop("grpc.reflection.v1alpha.ServerReflection") == {"ServerReflectionInfo"}
    assert services == {service.full_name: {method.name for method in service.methods} for service in SERVICES}

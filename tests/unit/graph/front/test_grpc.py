"""The replica's gRPC, without HAProxy in front of it."""

import asyncio

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from deployments.protocol import inference_pb2 as pb
from deployments.protocol.services import SERVICES
from graph.front.grpc import GrpcListener
from graph.front.grpc_call import GrpcCall
from graph.front.reflection import ReflectionListener

HEAD = b"POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\ncontent-length: %d\r\n\r\n"


async def answered(path, *bodies):
    """The headers of what is answered to messages, one after the other, and the listener's answers."""
    got = []

    async def answer(name, body, call):
        got.append(body)
        return pb.ServerLiveResponse(live=True)

    listener = GrpcListener(answer, 1000)
    await listener.open(path)
    reader, writer = await asyncio.open_unix_connection(path)
    heads = []
    for body in bodies:
        writer.write(HEAD % len(body) + body)
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if b"chunked" in heads[-1]:
            heads[-1] += await reader.readuntil(b"\r\n0\r\n") + await reader.readuntil(b"\r\n\r\n")
    await listener.close()
    assert await reader.read() == b""
    writer.close()
    return heads, got


async def test_calls_are_answered_on_one_connection(tmp_path):
    heads, got = await answered(tmp_path / "s", b"\0\0\0\0\3abc", b"\0\0\0\0\0")
    assert got == [b"abc", b""]
    assert all(head.endswith(b"\r\n\r\n7\r\n\0\0\0\0\2\x08\1\r\n0\r\ngrpc-status: 0\r\n\r\n") for head in heads)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\1\0\0\0\3abc", grpc.StatusCode.UNIMPLEMENTED),
        (b"", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\0\0\0\0", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\0\0\0\0\3abcd", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\0\0\0\0\1a\0\0\0\0\1b", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_is_not_one_plain_message_is_refused(tmp_path, body, status):
    heads, got = await answered(tmp_path / "s", body, b"\0\0\0\0\0")
    assert b"grpc-status: %d\r\n" % status.value[0] in heads[0]
    assert got == [b""]


async def test_what_is_no_http_ends_the_connection(tmp_path):
    listener = GrpcListener(None, 1000)
    await listener.open(tmp_path / "s")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"nothing\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await listener.close()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90S", 90), ("1H", 3600), ("250m", 0.25), ("5", None), ("", None), ("xS", None), ("\u0661S", None)],
)
def test_a_timeout_is_read_as_grpc_writes_it(text, seconds):
    assert GrpcCall("/", [("grpc-timeout", text)]).timeout_s == seconds


def described(path):
    """Each service that reflection lists, with the names of its methods, as a client reads them."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()]
        return {service.full_name: {method.name for method in service.methods} for service in services}


async def test_reflection_describes_every_service(tmp_path):
    listener = ReflectionListener()
    await listener.open(tmp_path / "grpc.sock")
    try:
        services = await asyncio.to_thread(described, tmp_path / "grpc.sock")
    finally:
        await listener.close()
    assert services.pop("grpc.reflection.v1alpha.ServerReflection") == {"ServerReflectionInfo"}
    assert services == {service.full_name: {method.name for method in service.methods} for service in SERVICES}

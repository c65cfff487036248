"""The replica's gRPC, without HAProxy in front of it."""

import asyncio
from contextlib import asynccontextmanager
from importlib import import_module
from unittest.mock import Mock

import grpc
import pytest
from google.protobuf import empty_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.listeners.grpc import BESIDES, GrpcListener
from deployments.ingress.listeners.grpc_call import GrpcCall
from deployments.ingress.listeners.reflection import ReflectionListener
from deployments.ingress.protocol import FUNCTION, functions, services
from ensemble_serving.protocol import inference_pb2 as pb
from tests.door import Door

HEAD = b"POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\ncontent-length: %d\r\n\r\n"


async def answered(path, *bodies):
    """The headers of what is answered to messages, one after the other, and the listener's answers."""
    got = []

    async def answer(name, body, call):
        got.append(body)
        return pb.ServerLiveResponse(live=True)

    listener = GrpcListener(answer, lambda: 1000, services(None))
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
        (b"\0\0\0\0\3ab", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_is_not_one_plain_message_is_refused(tmp_path, body, status):
    heads, got = await answered(tmp_path / "s", body, b"\0\0\0\0\0")
    assert b"grpc-status: %d\r\n" % status.value[0] in heads[0]
    assert got == [b""]


async def test_what_is_no_http_ends_the_connection(tmp_path):
    listener = GrpcListener(None, lambda: 1000, services(None))
    await listener.open(tmp_path / "s")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(b"nothing\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await listener.close()


CHUNKED = b"POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\nmine: 1\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def connected(path, answer, most=lambda: 1000):
    """A connection to a listener."""
    listener = GrpcListener(answer, most, services(None))
    await listener.open(path)
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield listener, reader, writer
    finally:
        writer.close()
        await listener.close()


async def test_what_a_client_sends_after_its_message_is_no_metadata(tmp_path):
    seen = []

    async def answer(name, body, call):
        seen.append(dict(call.invocation_metadata()))
        return pb.ServerLiveResponse(live=True)

    async with connected(tmp_path / "s", answer) as (_, reader, writer):
        writer.write(CHUNKED + b"5\r\n\0\0\0\0\0\r\n0\r\nmine: 2\r\nx-forwarded-for: 6.6.6.6\r\n\r\n")
        await reader.readuntil(b"grpc-status: 0\r\n")
    assert seen == [{"mine": "1", "transfer-encoding": "chunked"}]


@pytest.mark.parametrize(("declared", "status"), [(0, 3), (10, 3), (2**30, 8)])
async def test_more_than_a_message_declares_or_may_have_is_not_waited_for(tmp_path, declared, status):
    async with connected(tmp_path / "s", None) as (listener, reader, writer):
        writer.write(CHUNKED + b"10\r\n\0" + declared.to_bytes(4, "big") + bytes(11) + b"\r\n")
        assert b"grpc-status: %d\r\n" % status in await reader.read()
        assert listener.in_flight == 0


async def test_the_most_that_a_message_may_have_changes_while_it_serves(tmp_path):
    async def answer(name, body, call):
        return pb.ServerLiveResponse(live=True)

    most = [0]
    async with connected(tmp_path / "s", answer, lambda: most[0]):
        size = BESIDES + 1
        message = HEAD % (size + 5) + b"\0" + size.to_bytes(4, "big") + bytes(size)
        for limit, status in ((0, 8), (1, 0)):
            most[0] = limit
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(message)
            assert b"grpc-status: %d\r\n" % status in await reader.readuntil(b"grpc-status: %d\r\n" % status)
            writer.close()


async def test_a_call_that_has_expired_is_answered_once(tmp_path):
    """Although its handler makes another exception of being cancelled."""
    late, calls = asyncio.Event(), []

    async def answer(name, body, call):
        calls.append(body)
        if body != b"slow":
            return pb.ServerLiveResponse(live=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await late.wait()
            raise ValueError("late") from None

    async with connected(tmp_path / "s", answer) as (_, reader, writer):
        head = HEAD.replace(b"\r\n\r\n", b"\r\ngrpc-timeout: 50m\r\n\r\n")
        writer.write(head % 9 + b"\0\0\0\0\4slow")
        assert b"grpc-status: 4\r\n" in await reader.readuntil(b"\r\n\r\n")
        late.set()
        writer.write(HEAD % 5 + b"\0\0\0\0\0")
        assert await reader.readuntil(b"grpc-status: 0\r\n")
        assert calls == [b"slow", b""]


@pytest.mark.parametrize("words", ["x" * 20_000, "\u20ac" * 2000, "a \ud800 surrogate"])
async def test_words_are_cut_to_what_clients_take(tmp_path, words):
    async def answer(name, body, call):
        call.set_code(grpc.StatusCode.NOT_FOUND)
        call.set_details(words)
        return pb.ServerLiveResponse()

    async with connected(tmp_path / "s", answer) as (_, reader, writer):
        writer.write(HEAD % 5 + b"\0\0\0\0\0")
        head = await reader.readuntil(b"\r\n\r\n")
    assert b"grpc-status: 5\r\n" in head
    assert len(head) < 8000


async def test_an_answer_that_cannot_be_written_ends_the_connection(tmp_path):
    async def answer(name, body, call):
        call.set_trailing_metadata([("x", "\u20ac")])
        return pb.ServerLiveResponse()

    async with connected(tmp_path / "s", answer) as (listener, reader, writer):
        writer.write(HEAD % 5 + b"\0\0\0\0\0")
        assert await reader.read() == b""
        assert listener.in_flight == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90S", 90),
        ("9M", 540),
        ("1H", 600),
        ("250m", 0.25),
        ("5", 600),
        ("", 600),
        ("xS", 600),
        ("\u0661S", 600),
        ("1S,5H", 600),
        ("99999999H", 600),
    ],
)
def test_a_timeout_is_read_as_grpc_writes_it(text, seconds):
    assert GrpcCall("/", [("grpc-timeout", text)], 1000).timeout_s == seconds


def described(path):
    """Each service that reflection lists, with the names of its methods, as a client reads them."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()]
        return {service.full_name: {method.name for method in service.methods} for service in services}


async def test_reflection_describes_every_service(tmp_path):
    listener = ReflectionListener(services(None))
    await listener.open(tmp_path / "grpc.sock")
    try:
        found = await asyncio.to_thread(described, tmp_path / "grpc.sock")
    finally:
        await listener.close()
    assert found.pop("grpc.reflection.v1alpha.ServerReflection") == {"ServerReflectionInfo"}
    assert found == {each.full_name: {method.name for method in each.methods} for each in services(None)}


async def test_what_the_list_leaves_out_is_neither_served_nor_described(tmp_path):
    health = services([FUNCTION.format("health")])
    listener, reflection = GrpcListener(None, lambda: 1000, health), ReflectionListener(health)
    call = GrpcCall("/inference.GRPCInferenceService/ServerLive", [], 1000)
    assert await listener._answer(call) is None
    assert call.code is grpc.StatusCode.UNIMPLEMENTED
    assert "the services are grpc.health.v1.Health" in call.details
    await reflection.open(tmp_path / "grpc.sock")
    try:
        found = await asyncio.to_thread(described, tmp_path / "grpc.sock")
    finally:
        await reflection.close()
    assert set(found) == {"grpc.reflection.v1alpha.ServerReflection", "grpc.health.v1.Health"}


async def test_a_protocol_of_ones_own_is_described_whatever_pool_it_is_in(tmp_path):
    file = FileDescriptorProto(name="own/words.proto", package="own", dependency=[empty_pb2.DESCRIPTOR.name])
    empty = ".google.protobuf.Empty"
    file.service.add(name="Words").method.add(name="Say", input_type=empty, output_type=empty)
    pool = DescriptorPool()
    pool.AddSerializedFile(empty_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    listener = ReflectionListener([pool.FindServiceByName("own.Words")])
    await listener.open(tmp_path / "grpc.sock")
    try:
        found = await asyncio.to_thread(described, tmp_path / "grpc.sock")
    finally:
        await listener.close()
    assert found["own.Words"] == {"Say"}


def test_without_a_list_every_service_is_served_and_an_empty_one_has_none():
    every = services(None)
    assert len(every) >= 6
    assert services([]) == ()
    assert {each for name in functions() for each in services([name])} == set(every)
    assert all(hasattr(import_module(place), name) for place, _, name in (each.rpartition(".") for each in functions()))


@pytest.mark.parametrize(
    ("path", "details"),
    [
        ("/seldon.protos.Seldon/Predict", "there is no method /seldon.protos.Seldon/Predict"),
        ("/inference.GRPCInferenceService/SystemSharedMemoryStatus", "SystemSharedMemoryStatus is not served"),
    ],
)
async def test_a_method_that_nothing_answers_reads_no_metadata_of_packages(path, details, without_plugins, monkeypatch):
    listener = GrpcListener(GrpcServer(Door().service), lambda: 1000, services(None))
    opened = Mock(side_effect=AssertionError("a call made the server read metadata"))
    monkeypatch.setattr("importlib.metadata.MetadataPathFinder.find_distributions", opened)
    call = GrpcCall(path, [], 1000)
    call.body = bytearray(5)
    await listener._answer(call)
    assert call.code is grpc.StatusCode.UNIMPLEMENTED
    assert details in call.details
    opened.assert_not_called()

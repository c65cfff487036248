"""What HAProxy bounds of gRPC's messages on their way, and what becomes of them, seen at the listener behind it."""

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deployments.ingress import protocol
from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.listeners import slot
from deployments.ingress.listeners.grpc import MOST_STREAMS, GrpcListener
from ensemble_serving.protocol import inference_pb2 as pb
from tests.door import Door
from tests.unit.scripts.serve.test_haproxy import Front, folder

__all__ = ["folder"]
METHOD, LOADING = "/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/RepositoryModelLoad"
# Bytes of a request's images.
MOST = 2**25
# As the configuration has them: bytes, and so many messages of more at a time.
MOST_OF_SIZE = {4 * 1024 * 1024: 16, 256 * 1024: 128}
HEADERS, DATA, RESET, END_STREAM, END_HEADERS = 1, 0, 3, 1, 4
LARGE = [("grpc.max_receive_message_length", -1)]


class Answering:
    """Answers every call with the seconds that it may take, and counts those that it got."""

    def __init__(self):
        self.count = 0

    async def __call__(self, name, body, call):
        self.count += 1
        self.body, self.seconds = body, call.timeout_s
        return pb.ServerMetadataResponse(name=str(call.timeout_s))


@asynccontextmanager
async def opened(folder, handler):
    """A listener in a slot, beside the socket that HAProxy checks."""
    listener, place = GrpcListener(handler, lambda: MOST, protocol.services(None)), slot.take(folder)
    with socket.socket(socket.AF_UNIX) as checked:
        checked.bind(str(place.path(slot.CHECKED)))
        checked.listen()
        await listener.open(place.path("grpc"))
        place.open()
        try:
            yield listener
        finally:
            await listener.close()
            place.release()
    place.path(slot.CHECKED).unlink()


@asynccontextmanager
async def serving(folder, handler=None):
    """HAProxy, and the listener behind it."""
    handler = handler or Answering()
    with Front(folder) as fronted:
        async with opened(folder, handler) as listener:
            yield fronted, handler
        assert not listener.in_flight


def channel(fronted):
    return grpc.aio.insecure_channel(f"127.0.0.1:{fronted.grpc}", options=LARGE)


async def ask(fronted, body=b"", timeout=None, method=METHOD, compression=None):
    """The seconds that the server had for a call."""
    async with channel(fronted) as there:
        call = there.unary_unary(method, response_deserializer=pb.ServerMetadataResponse.FromString)
        return float((await call(body, timeout=timeout, compression=compression, wait_for_ready=True)).name)


def frame(kind, payload, stream=1, flags=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header as HPACK writes it without a table."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


@asynccontextmanager
async def beginning(
    fronted, declared, sent, timeout="90S", encoding="identity", *, ends=False, source="127.0.0.1", **other
):
    """A message of which so many bytes come, and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fronted.grpc, local_addr=(source, 0))
    given = {":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "x", "te": "trailers"}
    given |= {"content-type": "application/grpc", "grpc-timeout": timeout, "grpc-encoding": encoding}
    given |= {name.replace("_", "-"): value for name, value in other.items()}
    head = b"".join(literal(name, value) for name, value in given.items())
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"", stream=0))
    writer.write(
        frame(HEADERS, head, flags=END_HEADERS)
        + frame(DATA, b"\0" + struct.pack(">I", declared) + bytes(sent), flags=END_STREAM if ends else 0)
    )
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


async def end(reader):
    """What the server says as it gives a message up: the payload of its headers; nothing if it resets the stream."""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] in (HEADERS, RESET):
            return payload if head[3] == HEADERS else b""


@pytest.mark.parametrize(("size", "most"), MOST_OF_SIZE.items())
async def test_messages_on_their_way_are_bounded_by_their_size(folder, size, most):
    async with serving(folder) as (fronted, handler), AsyncExitStack() as on_their_way:
        assert await ask(fronted, bytes(size + 1)) > 0
        readers = [
            await on_their_way.enter_async_context(
                beginning(fronted, size + 1, 9000, source=f"127.0.0.{2 + place % 4}")
            )
            for place in range(most + 1)
        ]
        # One of them is refused; which of them is first at HAProxy is no matter.
        done, rest = await asyncio.wait(
            [asyncio.create_task(end(each)) for each in readers], timeout=60, return_when="FIRST_COMPLETED"
        )
        assert [b"overloaded" in each.result() for each in done] == [True]
        with pytest.raises(grpc.aio.AioRpcError, match="overloaded") as caught:
            await ask(fronted, bytes(size + 1))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # What is smaller goes on.
        assert await ask(fronted, bytes(size)) > 0
        assert handler.count == 2
        for task in rest:
            task.cancel()


@pytest.mark.parametrize(("size", "most"), MOST_OF_SIZE.items())
async def test_one_sender_has_half_of_the_messages_on_their_way(folder, size, most):
    async with serving(folder) as (fronted, _), AsyncExitStack() as on_their_way:
        readers = [
            await on_their_way.enter_async_context(beginning(fronted, size + 1, 9000, source="127.0.0.2"))
            for _ in range(most // 2 + 1)
        ]
        done, rest = await asyncio.wait(
            [asyncio.create_task(end(each)) for each in readers], timeout=60, return_when="FIRST_COMPLETED"
        )
        assert [b"overloaded" in each.result() for each in done] == [True]
        assert await ask(fronted, bytes(size + 1)) > 0
        for task in rest:
            task.cancel()


@pytest.mark.parametrize("name", ["ModelReady", "ModelStatistics", "RepositoryModelLoad"])
async def test_a_large_message_that_has_no_image_does_not_reach_the_application(folder, name):
    method, most = f"/inference.GRPCInferenceService/{name}", min(MOST_OF_SIZE)
    async with serving(folder) as (fronted, handler):
        assert await ask(fronted, bytes(most), method=method) > 0
        with pytest.raises(grpc.aio.AioRpcError, match="may have 256 KiB") as caught:
            await ask(fronted, bytes(most + 1), method=method)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert handler.count == 1


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_message_does_not_reach_the_application(folder, compression):
    async with serving(folder) as (fronted, handler):
        with pytest.raises(grpc.aio.AioRpcError, match="must not be compressed") as caught:
            await ask(fronted, bytes(10_000), compression=compression)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        # A client reads here what it may use instead; none of them hands it on.
        async with beginning(fronted, 10**6, 10, encoding="snappy") as reader:
            assert b"grpc-accept-encoding\x08identity" in await end(reader)
        assert handler.count == 0
        assert await ask(fronted, bytes(10_000), compression=grpc.Compression.NoCompression) > 0


@pytest.mark.parametrize(
    ("timeout", "method", "most"),
    [(None, METHOD, 100), (5, METHOD, 5), (3600, METHOD, 100), (5, LOADING, 600)],
)
async def test_every_call_has_a_deadline(folder, timeout, method, most):
    async with serving(folder) as (fronted, _):
        # gRPC rounds it up.
        assert most - 4 < await ask(fronted, b"a", timeout, method) < most + 1


async def test_a_message_that_does_not_end_is_given_up_at_its_deadline(folder):
    async with serving(folder) as (fronted, handler):
        async with beginning(fronted, 10**6, 9000, timeout="2S") as reader, asyncio.timeout(30):
            await end(reader)
        assert handler.count == 0


@pytest.mark.parametrize("other", [{"content_type": "text/plain"}, {":method": "GET"}, {":method": "PUT"}])
async def test_what_a_web_page_can_send_is_no_call(folder, other):
    async with serving(folder) as (fronted, handler):
        async with beginning(fronted, 0, 0, ends=True, **other) as reader, asyncio.timeout(30):
            # Their statuses are written out, 405 and 415, where 200 has a number of its own.
            assert b"4" in await end(reader)
        assert handler.count == 0
        assert await ask(fronted) > 0


async def test_a_deadline_that_two_readers_would_read_otherwise_is_replaced(folder):
    async with serving(folder) as (fronted, handler):
        async with beginning(fronted, 0, 0, timeout="1S,5H", ends=True) as reader, asyncio.timeout(30):
            await end(reader)
        assert handler.seconds == 100


async def test_a_stream_is_refused_at_once(folder):
    async with serving(folder) as (fronted, handler), channel(fronted) as there:
        # Nothing is written: asyncio's client loses the status where a stream is over before it writes.
        call = there.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(timeout=60, wait_for_ready=True)
        with pytest.raises(grpc.aio.AioRpcError, match="call ModelInfer") as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert handler.count == 0


async def test_a_refusal_has_the_type_without_which_clients_read_nothing_else(folder):
    async with serving(folder) as (fronted, _), beginning(fronted, 3, 3, encoding="gzip", ends=True) as reader:
        async with asyncio.timeout(60):
            assert b"application/grpc" in await end(reader)


async def test_a_message_that_hardly_begins_does_not_reach_the_application(folder):
    async with serving(folder) as (fronted, handler), channel(fronted) as there:
        call = there.stream_stream(METHOD)(timeout=60, wait_for_ready=True)
        await call.write(b"a beginning")
        with pytest.raises(grpc.aio.AioRpcError, match="slow_body") as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert handler.count == 0


async def test_a_message_comes_whole_and_its_answer_too(folder):
    body = bytes(range(256)) * 100_000

    async def answer(name, body, call):
        assert name == "inference.GRPCInferenceService/ModelInfer"
        call.set_trailing_metadata([("one", "1")])
        return pb.ModelInferResponse(id=dict(call.invocation_metadata())["given"], raw_output_contents=[body])

    async with serving(folder, answer) as (fronted, _), channel(fronted) as there:
        ask = there.unary_unary(METHOD, response_deserializer=pb.ModelInferResponse.FromString)
        call = ask(body, metadata=(("given", "a b"), ("request_id", "mine")), wait_for_ready=True)
        answered = await call
        assert (answered.id, answered.raw_output_contents) == ("a b", [body])
        trailers = dict(await call.trailing_metadata())
        assert (trailers["one"], trailers["request_id"]) == ("1", "mine")
        assert (await ask(b"", metadata=(("given", ""),))).raw_output_contents == [b""]


async def test_an_error_has_its_words_and_its_trailers(folder):
    words = "overloaded: 100 % of the queue, \u00e4 \n and more"

    async def answer(name, body, call):
        call.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        call.set_details(words)
        call.set_trailing_metadata([("grpc-retry-pushback-ms", "70")])
        return pb.ModelInferResponse()

    async with serving(folder, answer) as (fronted, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(fronted)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        trailers = dict(caught.value.trailing_metadata() or caught.value.initial_metadata())
        assert trailers["grpc-retry-pushback-ms"] == "70"
        assert "request_id" in trailers


@pytest.mark.parametrize(
    ("method", "body", "code", "words"),
    [
        ("/inference.GRPCInferenceService/Nothing", b"", grpc.StatusCode.UNIMPLEMENTED, "there is no method"),
        (METHOD, bytes(MOST + 3 * 1024 * 1024), grpc.StatusCode.RESOURCE_EXHAUSTED, "max_request_bytes"),
    ],
)
async def test_what_is_not_answered_is_told_so(folder, method, body, code, words):
    async with serving(folder) as (fronted, handler):
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await ask(fronted, body, method=method)
        assert caught.value.code() == code
        assert handler.count == 0
        assert await ask(fronted) > 0


@asynccontextmanager
async def watching(folder, state):
    """A listener with the health service behind HAProxy, and a client that watches; the listener ends first."""
    service = replace(Door().service, is_ready=lambda: state["ready"])
    async with AsyncExitStack() as stack:
        fronted = stack.enter_context(Front(folder))
        stub = health_pb2_grpc.HealthStub(await stack.enter_async_context(channel(fronted)))
        async with opened(folder, GrpcServer(service)) as listener:
            yield stub, listener


async def test_health_is_watched_until_the_replica_stops(folder):
    state = {"ready": False}
    async with watching(folder, state) as (stub, listener), asyncio.timeout(60):
        # The deadline that HAProxy gives to calls without one does not end a stream.
        known, unknown = (stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "none"))
        assert (await known.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        state["ready"] = True
        assert (await known.read()).status == health_pb2.HealthCheckResponse.SERVING
        unknown.cancel()
        while listener.streams > 1:
            await asyncio.sleep(0.01)
        # A replica stops without waiting for streams.
        assert listener.in_flight == 0
        await listener.close()
        with pytest.raises(grpc.aio.AioRpcError, match="this replica stops") as caught:
            await known.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


WATCH = (
    "POST /grpc.health.v1.Health/Watch HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {}\r\n"
    "content-length: 5\r\n\r\n\0\0\0\0\0"
)


async def test_streams_at_a_time_are_bounded_and_one_sender_has_half_of_them(folder):
    async with watching(folder, {"ready": True}) as (stub, listener), asyncio.timeout(60):
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(MOST_STREAMS // 2)]
        for call in calls:
            await call.read()
        await is_refused(stub, "32 streams")
        # Other calls go on, and a stream that ends makes room.
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        calls[0].cancel()
        while listener.streams == MOST_STREAMS // 2:
            await asyncio.sleep(0.01)
        # As HAProxy brings the streams of others.
        others = [await asyncio.open_unix_connection(next(folder.glob("grpc-*"))) for _ in range(MOST_STREAMS // 2 + 1)]
        for place, (reader, writer) in enumerate(others):
            writer.write(WATCH.format(f"10.0.0.{place % 3}").encode())
            await reader.readuntil(b"200 OK")
        while listener.streams < MOST_STREAMS:
            await asyncio.sleep(0.01)
        await is_refused(stub, "64 streams")
        for _, writer in others:
            writer.close()


async def is_refused(stub, words):
    with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
        await stub.Watch(health_pb2.HealthCheckRequest()).read()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_failure_of_ours_is_an_internal_error(folder):
    async def answer(name, body, call):
        raise ValueError("a bug")

    async with serving(folder, answer) as (fronted, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(fronted)
        assert caught.value.code() == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("gives_up", ["deadline", "cancel"])
async def test_a_call_that_nobody_waits_for_is_given_up(folder, gives_up):
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(name, body, call):
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(folder, answer) as (fronted, _), asyncio.timeout(30):
        task = asyncio.create_task(ask(fronted, timeout=2 if gives_up == "deadline" else None))
        await began.wait()
        if gives_up == "cancel":
            task.cancel()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await task
        await cancelled.wait()


async def test_the_server_itself_answers_that_the_deadline_has_passed(folder):
    async def answer(name, body, call):
        await asyncio.Event().wait()

    async with serving(folder, answer) as (fronted, _), beginning(fronted, 0, 0, timeout="1S", ends=True) as reader:
        async with asyncio.timeout(30):
            assert b"grpc-status\x014" in await end(reader)

"""What HAProxy bounds of gRPC's messages on their way, seen at a gRPC server behind it."""

import asyncio
import struct
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from graph.front import slot
from tests.unit.scripts.serve.test_haproxy import Front, folder

__all__ = ["folder"]
pytestmark = pytest.mark.slow
METHOD, LOADING = "/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/RepositoryModelLoad"
# As the configuration has them: bytes, and so many messages of more at a time.
MOST_OF_SIZE = {4 * 1024 * 1024: 16, 256 * 1024: 128}
HEADERS, DATA, RESET, END_HEADERS = 1, 0, 3, 4


class Answering(grpc.GenericRpcHandler):
    """Answers every call with the seconds that are left of it, and counts those that it got."""

    def __init__(self):
        self.count = 0

    def service(self, call):
        async def answer(_, context):
            self.count += 1
            return str(context.time_remaining()).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def serving(folder):
    """HAProxy, and the server behind it."""
    with Front(folder) as fronted:
        handler, place = Answering(), slot.take(folder)
        server = grpc.aio.server(handlers=[handler], options=[("grpc.max_receive_message_length", 2**25)])
        server.add_insecure_port(f"unix:{place.path('grpc')}")
        await server.start()
        place.open()
        try:
            yield fronted, handler
        finally:
            await server.stop(None)
            place.release()


async def ask(fronted, body=b"", timeout=None, method=METHOD, compression=None):
    """The seconds that the server had for a call."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{fronted.grpc}") as channel:
        call = channel.unary_unary(method)
        return float(await call(body, timeout=timeout, compression=compression, wait_for_ready=True))


def frame(kind, payload, stream=1, flags=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header as HPACK writes it without a table."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


@asynccontextmanager
async def beginning(fronted, declared, sent, timeout="90S", encoding="identity"):
    """A message of which so many bytes come, and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fronted.grpc)
    given = {":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "x", "te": "trailers"}
    given |= {"content-type": "application/grpc", "grpc-timeout": timeout, "grpc-encoding": encoding}
    head = b"".join(literal(name, value) for name, value in given.items())
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"", stream=0))
    writer.write(
        frame(HEADERS, head, flags=END_HEADERS) + frame(DATA, b"\0" + struct.pack(">I", declared) + bytes(sent))
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
        readers = [await on_their_way.enter_async_context(beginning(fronted, size + 1, 9000)) for _ in range(most + 1)]
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
        assert most - 4 < await ask(fronted, b"a", timeout, method) <= most


async def test_a_message_that_does_not_end_is_given_up_at_its_deadline(folder):
    async with serving(folder) as (fronted, handler):
        async with beginning(fronted, 10**6, 9000, timeout="2S") as reader, asyncio.timeout(30):
            await end(reader)
        assert handler.count == 0


async def test_a_message_that_hardly_begins_does_not_reach_the_application(folder):
    async with serving(folder) as (fronted, handler), beginning(fronted, 10**6, 10) as reader:
        async with asyncio.timeout(30):
            assert b"slow_body" in await end(reader)
        assert handler.count == 0

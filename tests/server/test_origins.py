"""A page of another origin in a real browser, with a key: what it may send and read."""

import base64
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts import keys
from tests.levels import level
from tests.server.seen import browser
from tests.server.server import Server, config

pytestmark = pytest.mark.skipif(not (browser.PROGRAM and browser.DRIVER), reason="no chromium and chromedriver")
FETCH = """
const [url, path, key, kind, content, done] = arguments;
const body = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
const headers = {"Content-Type": kind, "Authorization": `Bearer ${key}`};
fetch(url + path, path.endsWith("live") ? {} : {method: "POST", body, headers}).then(async (answer) => done({
    status: answer.status, body: await answer.json(), headers: Object.fromEntries(answer.headers),
})).catch((error) => done({error: String(error)}));
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *_):
        pass


@contextmanager
def pages():
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_listed_page_classifies_with_a_key_and_another_page_reads_nothing(repository, tmp_path):
    key = keys.add(tmp_path / "keys", "page", None)
    image, tensor = level(10), b'{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["%s"]}]}'
    tensor %= base64.b64encode(level(10))
    sent = {
        "/classify": ("image/jpeg", image),
        "/v2/models/ensemble/infer": ("application/json", tensor),
        "/v1/models/ensemble:predict": (
            "application/json",
            b'{"instances": [{"b64": "%s"}]}' % base64.b64encode(image),
        ),
    }
    with ExitStack() as stack:
        listed, other = (stack.enter_context(pages()) for _ in range(2))
        args = {"access": {"keys": str(tmp_path / "keys")}, "ingress": {"origins": [listed]}}
        server = stack.enter_context(Server(config(repository, "inline", **args)))
        driver = stack.enter_context(browser.chromium())

        def asked(path, key, kind="image/jpeg", content=b""):
            text = base64.b64encode(content).decode()
            return driver.execute_async_script(FETCH, server.url, path, key, kind, text)

        driver.get(listed)
        for path, (kind, content) in sent.items():
            answer = asked(path, key, kind, content)
            assert answer.get("status") == 200, answer
            assert {"x-request-id", "server-timing"} <= answer["headers"].keys()
        refused = asked("/classify", "no such key", content=image)
        assert (refused["status"], refused["body"]["error"]["code"]) == (401, "unauthenticated")
        assert asked("/v2/health/live", key)["status"] == 200
        driver.get(other)
        for path, (kind, content) in {**sent, "/v2/health/live": ("", b"")}.items():
            assert "Failed to fetch" in asked(path, key, kind, content)["error"], path

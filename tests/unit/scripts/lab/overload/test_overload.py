import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts.lab.overload.__main__ import Seen, main, told


@pytest.fixture
def server():
    """Answers `cat`, the first ones eased; refuses every fifth."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.path)
            status = 503 if len(seen) % 5 == 0 else 200
            body = json.dumps({"label": "cat", "asked": ["a"], "eased": True}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", seen
        http.shutdown()
        thread.join()


def test_every_image_is_sent_and_told(server, draw, tmp_path, monkeypatch, capsys):
    url, seen = server
    file = tmp_path / "told.json"
    flags = ["--rate", "200", "--seconds", "1", "--after", "0.1", "--data", str(draw({"cat": 2, "dog": 2}))]
    monkeypatch.setattr(sys, "argv", ["overload", url, *flags, "--json", str(file)])
    main()
    result = json.loads(file.read_text())
    # One more came first, to see whether the server is there.
    assert result["sent"] + result["after"]["sent"] + 1 == len(seen)
    assert result["sent"] == sum(second["sent"] for second in result["by_second"]) > 100
    assert result["answered"] + result["refused"] == result["sent"]
    assert result["refused"] > 0 == result["failed"]
    assert 30 < result["top1"] < 70
    assert result["eased"] == 1.0
    assert json.loads(capsys.readouterr().out)["sent"] == result["sent"]


def test_how_long_the_load_is_remembered_is_told():
    seen = [Seen(0.5, 0.1, 200, True, 1, True), Seen(1.2, 0.3, 200, True, 1, True), Seen(1.9, 0.1, 200, True, 2)]
    result = told(seen, 1.0)
    assert result["eased_until_s"] == 0.5
    assert (result["sent"], result["after"]["sent"], result["after"]["eased"]) == (1, 2, 0.5)


def test_of_a_second_without_an_answer_no_latency_is_told():
    assert told([Seen(0.5, 0.1, 503)], 2.0)["by_second"][0]["p50_ms"] is None


def test_nobody_there_is_told_in_one_line(draw, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["overload", "http://127.0.0.1:9", "--data", str(draw({"cat": 1}))])
    with pytest.raises(SystemExit, match=r"error: .* answers nothing; is it serving"):
        main()

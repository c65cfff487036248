"""A hundred thousand photographs, in small: a server that refuses, loses and answers as it is told."""

import csv
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts import bulk
from scripts.errors import ScriptError


class Moody(ThreadingHTTPServer):
    """Refuses each image once, closes the connection on it once, then answers; of some it has another opinion."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = Counter()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        image = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked[image] += 1
        if image == "no image":
            self._answer(400, {"error": {"code": "invalid_image", "message": "no, it is none"}})
        elif image == "never" or self.server.asked[image] == 1:
            self._answer(503, {"error": {"code": "overloaded", "message": "later", "retry_after_ms": 1}})
        elif self.server.asked[image] == 2:
            self.close_connection = True
        else:
            self._answer(200, {"label": image, "index": 3, "probability": 0.5, "missing": {"b": "lost"}})

    def _answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "FIRST_WAIT_S", 0.001)
    photographs = tmp_path / "photographs"
    (photographs / "more").mkdir(parents=True)
    for number in range(10):
        (photographs / "more" / f"{number}.jpg").write_text(f"image {number}")
    (photographs / 'bad, "really".jpg').write_text("no image")
    (photographs / "never.jpg").write_text("never")
    return photographs


def rows(output):
    with output.open(newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream)}


def test_what_may_be_is_asked_again_and_the_rest_is_told(folder, tmp_path):
    output = tmp_path / "answers.csv"
    paths = bulk.photographs([folder])
    with Moody() as server:
        report = bulk.classify_all(server.url, paths, output, 4, {})
        told = "\n".join(report.lines())
        assert told.startswith("10 photographs classified, 2 failed\n")
        assert "invalid_image: 1, such as" in told
        assert "overloaded: 1, such as" in told
        assert server.asked["no image"] == 1
        assert server.asked["never"] == bulk.MOST_TRIES
        written = rows(output)
        assert {row["label"] for row in written.values()} == {"", *(f"image {number}" for number in range(10))}
        assert written[str(folder / 'bad, "really".jpg')]["error"] == "invalid_image"
        assert written[str(folder / "more" / "3.jpg")]["missing"] == "b:lost"
        # What may go better another time is asked again, and nothing else.
        assert str(folder / "never.jpg") not in written
        again = bulk.classify_all(server.url, paths, output, 4, {})
        assert (again.before, again.done, dict(again.failed)) == (11, 0, {"overloaded": 1})


def test_a_line_that_was_being_written_is_written_again(folder, tmp_path):
    output, paths = tmp_path / "answers.csv", bulk.photographs([folder / "more"])
    with Moody() as server:
        bulk.classify_all(server.url, paths, output, 4, {})
        whole = output.read_bytes()
        output.write_bytes(whole[:-5])
        report = bulk.classify_all(server.url, paths, output, 4, {})
    assert (report.before, report.done) == (9, 1)
    assert sorted(output.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_file_of_something_else_is_left_alone(folder, tmp_path):
    output = tmp_path / "answers.csv"
    output.write_text("my,own\n1,2\n")
    with pytest.raises(ScriptError, match="--output"):
        bulk.classify_all("http://127.0.0.1:1", [folder], output, 1, {})
    assert output.read_text() == "my,own\n1,2\n"


def test_no_photographs(tmp_path):
    with pytest.raises(ScriptError, match="there is no file"):
        bulk.photographs([tmp_path])
    with pytest.raises(ScriptError, match=r"there is no .*nowhere"):
        bulk.photographs([tmp_path / "nowhere"])

"""Many images, in small: a server that refuses, loses and answers as it is told."""

import csv
import json
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ensemble_models import classify, client
from ensemble_models import classify as answers
from ensemble_models.classify import table, to_json
from ensemble_serving import client as connection
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
        elif image == "page":
            self._answer(200, None)
        elif image == "never" or self.server.asked[image] == 1:
            self._answer(503, {"error": {"code": "overloaded", "message": "later", "retry_after_ms": 1}})
        elif self.server.asked[image] == 2:
            self.close_connection = True
        else:
            top = [{"label": image, "index": 3, "probability": 0.5}]
            self._answer(
                200, {**top[0], "top": top, "missing": {"b": "lost"}, "model_versions": {}, "trace_id": "0" * 32}
            )

    def _answer(self, status, content):
        body = b"<html>" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(client, "PATIENCE_S", 0.5)
    images = tmp_path / "images"
    (images / "more").mkdir(parents=True)
    for number in range(10):
        (images / "more" / f"{number}.jpg").write_text(f"image {number}")
    (images / 'bad, "really".jpg').write_text("no image")
    (images / "never.jpg").write_text("never")
    return images


def run(monkeypatch, capsys, *arguments):
    """What the command prints, and its exit status."""
    monkeypatch.setattr(sys, "argv", ["classify", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        classify.main()
    return capsys.readouterr().out, end.value.code


def rows(output):
    with output.open(newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream)}


def test_what_may_be_is_sent_again_and_the_rest_is_reported(folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "answers.csv"
    with Moody() as server:
        flags = (folder, "--url", server.url, "--workers", 4, "--output", output)
        printed, status = run(monkeypatch, capsys, *flags)
        assert status == 1
        assert printed.startswith("10 images classified, 2 failed\n")
        assert "invalid_image: 1, such as" in printed
        assert "overloaded: 1, such as" in printed
        assert server.asked["no image"] == 1
        assert server.asked["never"] > 1
        written = rows(output)
        assert {row["label"] for row in written.values()} == {"", *(f"image {number}" for number in range(10))}
        assert written[str(folder / 'bad, "really".jpg')]["error"] == "invalid_image"
        assert written[str(folder / "more" / "3.jpg")]["missing"] == "b:lost"
        # What may go better another time is sent again, and nothing else.
        assert str(folder / "never.jpg") not in written
        printed, _ = run(monkeypatch, capsys, *flags)
        assert printed.startswith("0 images classified, 1 failed; 11 were finished before\n")


def test_a_line_that_was_being_written_is_written_again(folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "answers.csv"
    with Moody() as server:
        flags = (folder / "more", "--url", server.url, "--output", output)
        assert run(monkeypatch, capsys, *flags)[1] == 0
        whole = output.read_bytes()
        output.write_bytes(whole[:-5])
        printed, _ = run(monkeypatch, capsys, *flags)
    assert printed.startswith("1 images classified, 0 failed; 9 were finished before\n")
    assert sorted(output.read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize("flags", [("--output", "a.csv", "--json"), ("--output", "a.csv", "--top-k", 2)])
def test_a_flag_that_would_do_nothing_is_refused(folder, monkeypatch, capsys, flags):
    assert run(monkeypatch, capsys, folder, *flags)[1] == 2


def test_a_folder_needs_no_file_to_write_to(folder, monkeypatch, capsys):
    with Moody() as server:
        printed, status = run(monkeypatch, capsys, folder, "--url", server.url, "--json")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["path"] for line in lines] == [str(path) for path in answers.images([folder])]
    assert {line.get("label") for line in lines} == {None, *(f"image {number}" for number in range(10))}
    assert status == 1


def test_no_server_and_another_one_end_in_one_line(folder, tmp_path, monkeypatch, capsys):
    _, status = run(monkeypatch, capsys, folder, "--url", "http://127.0.0.1:9")
    assert status.startswith("error: no answer from http://127.0.0.1:9: ")
    assert "ensemble serve" in status
    (tmp_path / "page").write_text("page")
    with Moody() as server:
        _, status = run(monkeypatch, capsys, tmp_path / "page", "--url", server.url)
    assert "responds '<html>'; is this the ensemble?" in status


def test_a_file_of_something_else_is_left_alone(folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "answers.csv"
    output.write_text("my,own\n1,2\n")
    _, status = run(monkeypatch, capsys, folder, "--output", output)
    assert "--output" in status
    assert output.read_text() == "my,own\n1,2\n"


def test_no_images(tmp_path):
    with pytest.raises(ScriptError, match="there is no file"):
        answers.images([tmp_path])
    with pytest.raises(ScriptError, match=r"there is no .*nowhere"):
        answers.images([tmp_path / "nowhere"])


ANSWER = {
    "label": "cat",
    "top": [{"label": "cat", "index": 3, "probability": 0.9}, {"label": "dog", "index": 5, "probability": 0.05}],
    "members": {"resnet": {"label": "cat", "index": 3, "probability": 0.95}},
}
ERROR = {"error": {"code": "invalid_image", "message": "not an image"}}


def test_a_row_for_each_class_and_a_line_for_an_error(capsys):
    table([(Path("a.jpg"), ANSWER), (Path("[b].txt"), ERROR)], members=True).show()
    text = capsys.readouterr().out
    for part in ("a.jpg", "cat", "0.9000", "dog", "resnet: cat 0.950", "[b].txt", "not an image"):
        assert part in text


def test_of_a_long_path_the_end_is_shown(capsys):
    path = Path("/images") / ("deep" * 30) / "the-cat.jpg"
    table([(path, ANSWER)], members=False).show()
    text = capsys.readouterr().out
    assert "the-cat.jpg" in text
    assert "resnet" not in text


def test_json_has_a_line_for_each_image():
    lines = to_json([(Path("a.jpg"), ANSWER), (Path("b.txt"), ERROR)]).splitlines()
    assert json.loads(lines[0]) == {"path": "a.jpg", **ANSWER}
    assert json.loads(lines[1]) == {"path": "b.txt", "error": "not an image"}

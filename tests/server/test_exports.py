"""Where a real server's traces go: out at the end, nowhere without a collector, into a file."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests import pictures
from tests.server.server import Server, config, eventually, post


class Unwilling(ThreadingHTTPServer):
    """A collector that takes nothing, and counts how often it was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Refusal)
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Refusal(BaseHTTPRequestHandler):
    """Answers 500, after which OTLP's clients don't try again."""

    def do_POST(self):
        self.server.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(500)

    def log_message(self, *_):
        pass


def test_what_waits_is_exported_at_shutdown_and_the_file_is_drawn(repository, tmp_path):
    waits = {"OTEL_TRACES_EXPORTER": "file", "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with Server(config(repository, "separate"), folder=tmp_path, **waits) as server:
        with ThreadPoolExecutor(10) as pool:
            answers = [*pool.map(lambda _: post(server, pictures.jpeg(40, 60)), range(10))]
        assert not [file for file in (tmp_path / "traces").glob("*") if file.stat().st_size]
    expected = {answer.json()["trace_id"] for answer in answers}
    command = [sys.executable, "-m", "ensemble_capacity.trace", "--last", "10", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    drawn = json.loads(done.stdout)
    assert {trace["trace_id"] for trace in drawn} == expected
    for trace in drawn:
        names = {span["name"] for span in trace["spans"]}
        assert names >= {"classify", "queue", "decode", "predict one", "predict six", "combine", "label"}


def test_without_a_collector_the_service_goes_on_and_says_so_once(repository):
    with Unwilling() as collector:
        _goes_on(repository, collector)


def _goes_on(repository, collector):
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = Server(config(repository, "inline"), **environment)
    with server:

        def told():
            logs = server.ray_logs("serve/*")
            return [line for p in logs for line in p.read_text().splitlines() if "spans" in line]

        def requests_go_on():
            assert post(server, pictures.jpeg()).status_code == 200
            return told()

        assert eventually(requests_go_on)
        more = collector.asked + 5
        assert eventually(lambda: requests_go_on() and collector.asked >= more)
        [line] = told()
        assert "can't be exported to otlp" in line
    # What waits is given up after a while; the rest of the time is Ray's own.
    assert server.stopped_in < 20

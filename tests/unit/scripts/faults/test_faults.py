import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts.faults.__main__ import plot, table
from scripts.faults.scenarios import SCENARIOS
from scripts.faults.watch import Answered, Watch, sight


def test_what_clients_saw():
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.began = 10.0
    watch.answered = [
        Answered(10, 11, None),
        Answered(11, 12, "503 full"),
        Answered(12, 16, None, ("densenet",)),
        Answered(16, 16.5, None),
    ]
    seen = sight(watch)
    assert (seen.requests, seen.failed, seen.degraded) == (4, 1, 1)
    assert (seen.dark_s, seen.first_failure) == (5, "503 full")
    assert 3900 < seen.p99_ms <= 4000


def test_without_any_answer_it_was_dark_all_the_time():
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.answered = [Answered(0, 1, "no")]
    assert sight(watch).dark_s == float("inf")


@pytest.fixture
def server():
    """Answers in turn: well, without a member, and 503."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        number = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            Handler.number += 1
            body = (b"{}", b'{"missing": {"a": "deadline_exceeded"}}', b"full")[Handler.number % 3]
            self.send_response(503 if body == b"full" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def test_a_watch_notes_every_request(server):
    watch = Watch(f"http://127.0.0.1:{server.server_port}", [b"image"], 2)
    watch.start()
    while len(watch.answered) < 12:
        pass
    watch.stop()
    seen = sight(watch)
    assert seen.requests == len(watch.answered)
    assert seen.first_failure == "503 full"
    assert abs(seen.failed - seen.requests / 3) <= 1
    assert abs(seen.degraded - seen.requests / 3) <= 1
    watch = Watch("http://127.0.0.1:1", [b"image"], 1)
    watch.start()
    while not watch.answered:
        pass
    watch.stop()
    assert "ConnectError" in watch.answered[0].failure


def test_the_results_are_a_table_and_a_picture(tmp_path):
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.began, watch.answered = 0.0, [Answered(0, 1, None)]
    results = [(scenario, sight(watch)) for scenario in SCENARIOS]
    assert len(set(scenario.name for scenario in SCENARIOS)) == len(SCENARIOS)
    assert len(table(results).markdown().splitlines()) == 2 + len(SCENARIOS)
    pytest.importorskip("matplotlib")
    plot(results, tmp_path / "faults.svg")
    assert (tmp_path / "faults.svg").read_text().startswith("<?xml")


def test_an_unknown_scenario_is_told():
    command = [sys.executable, "-m", "scripts.faults", "earthquake"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no scenario 'earthquake'; there are members, " in done.stderr

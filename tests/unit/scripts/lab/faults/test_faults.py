import math
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts.errors import ScriptError
from scripts.lab.faults.__main__ import plot, table
from scripts.lab.faults.attackers import attack
from scripts.lab.faults.scenarios import SCENARIOS
from scripts.lab.faults.watch import Answered, Watch, sight


def test_what_clients_saw():
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.began = 10.0
    watch.answered = [
        Answered(10, 11, None),
        Answered(11, 12, "503 full"),
        Answered(12, 16, None, ("densenet",)),
        Answered(16, 16.5, None),
    ]
    seen = sight(watch, 16.2, 17)
    assert (seen.requests, seen.failed, seen.degraded) == (4, 1, 1)
    assert (seen.dark_s, seen.first_failure) == (5, "503 full")
    assert 3900 < seen.p99_ms <= 4000


def test_without_any_answer_it_was_dark_all_the_time():
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.answered = [Answered(0, 1, "no")]
    assert sight(watch, 1, 2).dark_s == float("inf")


def test_the_rate_that_is_kept_is_of_the_time_before_the_fault():
    watch = Watch("http://127.0.0.1:1", [b""], 1)
    watch.began = 0.0
    # From its first answer on one a second, and while the fault is done one in two.
    watch.answered = [Answered(end - 0.5, end, None) for end in (3, 4, 5, 6, 8, 10, 12, 12.1, 12.2)]
    assert sight(watch, 6, 12).kept == 0.5
    assert math.isnan(sight(watch, 3, 12).kept)


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
    made = watch.began
    watch.start()
    while len(watch.answered) < 12:
        pass
    watch.stop()
    seen = sight(watch, watch.began, time.monotonic())
    assert seen.requests == len(watch.answered)
    # What passes before the clients begin is not dark.
    assert made < watch.began <= watch.answered[0].began
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
    results = [(scenario, sight(watch, 1, 2)) for scenario in SCENARIOS]
    assert len(set(scenario.name for scenario in SCENARIOS)) == len(SCENARIOS)
    assert len(table(results).markdown().splitlines()) == 2 + len(SCENARIOS)
    pytest.importorskip("matplotlib")
    plot(results, tmp_path / "faults.svg")
    assert (tmp_path / "faults.svg").read_text().startswith("<?xml")


def test_an_unknown_scenario_is_told():
    command = [sys.executable, "-m", "scripts.lab.faults", "earthquake"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no scenario 'earthquake'; there are members, " in done.stderr


def test_attackers_are_a_process_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attack(_note_the_process)
    assert (tmp_path / "pid").read_text() not in {"", str(os.getpid())}


def test_an_attack_that_fails_is_told():
    with pytest.raises(ScriptError, match="ended with 1"):
        attack(_fail)


def _fail():
    sys.exit(1)


def _note_the_process():
    Path("pid").write_text(str(os.getpid()))

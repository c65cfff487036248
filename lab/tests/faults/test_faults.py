import math
import subprocess
import sys
import time

import pytest

from ensemble_capacity.load.records import DEGRADED, LOST
from lab.faults import campaign, scenarios
from lab.faults.scenarios import COLUMNS, SCENARIOS, sight
from lab.faults.stage import is_whole, watch
from lab.rows import table
from packages.capacity.tests.load.loads import made
from scripts.errors import ScriptError
from tests.local_servers import HttpServer, Reply


def test_what_clients_saw():
    found = made((10, 10, 11, 200, 0), (11, 11, 12, 503, 0), (12, 12, 16, 200, DEGRADED), (16, 16, 16.5, 200, 0))
    seen = sight(found, 10.0, 16.2, 17.0, "503 full")
    assert (seen["requests"], seen["failed"], seen["degraded"]) == (4, 1, 1)
    assert (seen["dark_s"], seen["first_failure"]) == (5, "503 full")
    assert seen["p99_ms"] == pytest.approx(4000)


def test_without_any_answer_it_was_dark_all_the_time():
    assert sight(made((0, 0, 1, LOST, 0)), 0.0, 1, 2)["dark_s"] == float("inf")


def test_the_rate_that_is_kept_is_of_the_time_before_the_fault():
    # From its first answer on one a second, and while the fault is done one in two.
    found = made(*((end - 0.5, end - 0.5, end, 200, 0) for end in (3, 4, 5, 6, 8, 10, 12, 12.1, 12.2)))
    assert sight(found, 0.0, 6, 12)["kept"] == 0.5
    assert math.isnan(sight(found, 0.0, 3, 12)["kept"])


def test_a_server_is_whole_when_the_last_answer_lacks_no_member():
    assert not is_whole(made(), 0.0)
    assert is_whole(made((1, 1, 3, 200, DEGRADED), (2, 2, 4, 200, 0)), 1.5)
    assert not is_whole(made((1, 1, 3, 200, 0), (2, 2, 4, 200, DEGRADED)), 1.5)
    assert not is_whole(made((1, 1, 3, 200, 0)), 1.5)
    assert not is_whole(made((2, 2, 3, 503, 0)), 1.5)


def test_clients_watch_every_request():
    replies = [Reply(), Reply(body=b'{"missing": {"a": "deadline_exceeded"}}'), Reply(503, b"full")]
    with HttpServer(lambda asked: replies[asked.number % 3]) as server, watch(server.url, [b"image"], 2) as clients:
        while len(clients.records()) < 12:
            time.sleep(0.01)
    seen = sight(clients.records(), clients.began, clients.began, time.perf_counter(), clients.first_error)
    assert seen["requests"] == len(server.asked)
    assert seen["first_failure"] == "503 full"
    assert abs(seen["failed"] - seen["requests"] / 3) <= 1
    assert abs(seen["degraded"] - seen["requests"] / 3) <= 1


def test_the_results_are_a_table():
    seen = sight(made((0, 0, 1, 200, 0)), 0.0, 1, 2)
    rows = [{"what": scenario.what, **seen} for scenario in SCENARIOS]
    assert len(set(scenario.name for scenario in SCENARIOS)) == len(SCENARIOS)
    assert len(table(COLUMNS, rows).markdown().splitlines()) == 2 + len(SCENARIOS)


def test_the_exit_status_is_1_if_a_scenario_failed_every_request_or_could_not_be_done(monkeypatch, capsys):
    def measure(scenario, clients):
        if (status := next(statuses)) is None:
            raise ScriptError("was not whole again")
        return [sight(made((0, 0, 1, status, 0)), 0.0, 1, 2, "" if status == 200 else "503 full")]

    statuses = iter((200, 503, None, 200))
    monkeypatch.setattr(campaign, "set_up", lambda: None)
    monkeypatch.setattr(scenarios, "measure", measure)
    scenarios.main(["members"])
    with pytest.raises(SystemExit) as end:
        scenarios.main(["members"])
    assert end.value.code == 1
    assert "members: the first failure was 503 full" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        scenarios.main(["members", "haproxy"])
    assert "three times: not measured: was not whole again" in capsys.readouterr().out
    assert next(statuses, None) is None


def test_an_unknown_scenario_is_told():
    command = [sys.executable, "-m", "lab.faults", "earthquake"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not one of 'members', " in done.stderr

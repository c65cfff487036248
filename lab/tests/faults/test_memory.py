"""Memory after requests, from a server that only pretends."""

import json
from contextlib import contextmanager

import pytest

from lab.faults import campaign, memory


class Pretends:
    def __init__(self, megabytes):
        self.megabytes, self.asked = iter(megabytes), []

    def load(self, load, protocol, clients, seconds):
        self.asked.append(protocol)
        return {"requests_per_s": 10.0}

    def resident_mb(self):
        return next(self.megabytes)


def test_the_growth_is_told_after_so_many_requests_and_as_many_again(monkeypatch, tmp_path, capsys):
    server = Pretends([1000.0, 1010.0, 1010.0])

    @contextmanager
    def running(system, load):
        assert system.placement == "separate"
        yield server

    monkeypatch.setattr(memory, "running", running)
    monkeypatch.setattr(campaign, "set_up", lambda: None)
    monkeypatch.setattr(memory, "workload", lambda *_: None)
    file = tmp_path / "memory.json"
    memory.MEMORY.main(["--requests", "400", "--placement", "separate", "--json", str(file)])
    # Of 150 each: a quarter of 400, 400, and 400 again.
    assert server.asked == ["http", *["http", "grpc", "http"] * 2]
    told = json.loads(file.read_text())
    assert [stop["requests"] for stop in told] == [150, 600, 1050]
    assert [stop["growth"] for stop in told] == [None, pytest.approx(0.01), pytest.approx(0.0)]
    assert "+1.00%" in capsys.readouterr().out

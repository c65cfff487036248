import contextlib
import json
import sys

import pytest

from ensemble_capacity.load.protocols import Classify
from lab.benchmark import __main__ as benchmark
from lab.benchmark.__main__ import COLUMNS, MEASURES, run, summary
from lab.benchmark.systems import OURS, System, named
from lab.benchmark.workloads import workload
from lab.rows import table
from scripts.errors import ScriptError


class FakeServer:
    """Requests/s by the number of clients, one more in each round."""

    rounds = 0

    def load(self, load, protocol, clients, seconds):
        sample = dict.fromkeys(MEASURES[:6], 1.0)
        return {**sample, "requests_per_s": 100.0 * clients + FakeServer.rounds}

    def rate_within_tail(self, load, protocol, lone_ms, most, seconds):
        return most / 2


@pytest.fixture
def fake(monkeypatch):
    """Servers and a limit that answer numbers, and the order in which they were asked."""
    order = []
    FakeServer.rounds = 0

    @contextlib.contextmanager
    def running(system, load, edit):
        order.append(f"{system.name} {system.placement or ''}".strip())
        FakeServer.rounds += 1
        yield FakeServer()

    class Limit:
        def measure(self):
            order.append("limit")
            return {clients: {"requests_per_s": 200.0 * clients, "p50_ms": 1.0} for clients in (1, 8)}

    monkeypatch.setattr(benchmark, "running", running)
    return order, Limit()


def test_systems_take_turns_with_the_limit_between_them(fake):
    order, limit = fake
    systems = [OURS["colocated"], System("mlserver", None, {"http": Classify()})]
    rows = summary(list(run(workload("trivial", "int8"), systems, limit, [1, 8], 0.1, 3)))
    once = ["limit", "ours colocated", "limit", "mlserver", "limit"]
    assert order == once * 3
    assert len(rows) == 2 + 2 * 2 + 2
    [row] = [row for row in rows if (row["system"], row["protocol"], row["clients"]) == ("ours", "grpc", 8)]
    # Rounds 1, 3 and 5 were its own: the median is the middle one.
    assert row["requests_per_s"] == 803
    assert row["ratio_to_limit"] == pytest.approx(803 / 1600)


def test_our_nodes_keep_the_replicas_that_they_start_with():
    config = workload("trivial", "int8").config("separate", 8000, 9000)
    benchmark.held(config)
    kept = {
        each["name"]: (each["num_replicas"], "autoscaling_config" in each)
        for each in config["applications"][0]["deployments"]
    }
    nodes = ("JpegTransformer", "ResNet", "DenseNet", "Combiner", "Labeler")
    assert kept == {"Ingress": (2, False), **dict.fromkeys(nodes, (1, False))}


def test_the_rate_within_the_tail_stands_beside_a_lone_client_and_the_highest_limit(fake):
    _, limit = fake
    rows = summary(list(run(workload("trivial", "int8"), [OURS["colocated"]], limit, [1, 8], 0.1, 1, with_tail=True)))
    tails = {(row["protocol"], row["clients"]): row["tail_ratio_to_limit"] for row in rows if row["system"] == "ours"}
    assert tails == {("http", 1): 801 / 2 / 1600, ("http", 8): None, ("grpc", 1): 801 / 2 / 1600, ("grpc", 8): None}


def test_what_was_measured_before_a_failure_is_written(fake, monkeypatch, tmp_path):
    _, limit = fake
    calm = benchmark.running

    def running(system, load, edit):
        if system.name == "mlserver":
            raise ScriptError("mlserver did not start")
        return calm(system, load, edit)

    monkeypatch.setattr(benchmark, "running", running)
    monkeypatch.setattr(benchmark, "Limit", lambda *_: limit)
    flags = ["--workload", "trivial", "--systems", "limit", "ours", "mlserver", "--clients", "1", "8"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *flags, "--json", str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit, match="mlserver did not start"):
        benchmark.main()
    systems = {(row["system"], row["placement"]) for row in json.loads((tmp_path / "rows.json").read_text())}
    assert systems == {("limit", None), ("ours", "colocated"), ("ours", "separate")}
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], str(tmp_path / "missing" / "rows.json")])
    with pytest.raises(SystemExit, match=r"^2$"):
        benchmark.main()


def test_a_limit_that_hangs_is_given_up(monkeypatch):
    limit = benchmark.Limit(workload("trivial", "int8"), [1], 600.0)
    monkeypatch.setattr(limit, "_patience_s", 0.5)
    with pytest.raises(ScriptError, match="not measured within"):
        limit.measure()


def test_what_a_system_has_not_is_left_out_of_the_tables():
    limit = {
        "system": "limit",
        "placement": None,
        "protocol": None,
        "clients": 8,
        "requests_per_s": 100.0,
        "p50_ms": 1.0,
    }
    ours = {**limit, "system": "ours", "placement": "colocated", "protocol": "http", "ratio_to_limit": 0.97}
    lines = table(COLUMNS, [limit, ours]).markdown().splitlines()
    assert lines[2] == "| limit |  |  | 8 | 100 | 1.00 |  |  |  |  |  |  |  |"
    assert lines[3].startswith("| ours | colocated | http | 8 |")
    assert len(lines) == 4


def test_an_unknown_system_is_told():
    known = "limit, ours, colocated, throughput, cascade, student, cached, chain"
    with pytest.raises(ScriptError, match=f"no system 'nginx'; there are {known}"):
        named(["ours", "nginx"])
    assert [system.name for system in named(["limit", "ours", "chain"])] == ["ours", "ours", "chain"]


def test_the_shipped_configuration_is_what_is_measured():
    load = workload("embedded", "float32")
    config = load.config("separate", 1, 2)
    assert config["http_options"]["port"] == 1
    assert config["grpc_options"]["port"] == 2
    members = config["applications"][0]["args"]["members"]
    assert [(m["name"], m["version"], m["inference_precision"]) for m in members] == [
        ("resnet", 1, "f32"),
        ("densenet", 1, "f32"),
    ]
    assert all(path.read_bytes()[:2] == b"\xff\xd8" for path in load.images)

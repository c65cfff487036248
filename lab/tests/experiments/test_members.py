"""An ensemble is compared with its slowest member, in the same placement and with as many clients."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from graph.config import parse
from lab import reported
from lab.benchmark.workloads import workload
from lab.experiments import members
from lab.experiments.members import CLIENTS, EDIT, MEMBERS_ALONE, PLACEMENTS, SERVED, TOGETHER


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_a_configuration(placement, name, monkeypatch):
    load = members.replace(workload("embedded", "int8"), members=SERVED[name])
    config = load.config(placement, 1, 2)
    EDIT(config)
    [application] = config["applications"]
    parsed = parse(application["args"])
    assert [(each.name, each.threads) for each in parsed.members] == [(each, 1) for each in SERVED[name]]
    assert {each["num_replicas"] for each in application["deployments"]} == {1}
    assert all("autoscaling_config" not in each for each in application["deployments"])


@pytest.fixture
def rows(monkeypatch):
    """The DenseNet takes 20 ms, the ResNet 10, and both 25 in one process and 32 in separate ones."""
    took = {"resnet": (10.0, 10.0), "densenet": (20.0, 20.0), TOGETHER: (25.0, 32.0)}

    @contextmanager
    def running(system, load, edit):
        name = TOGETHER if len(load.members) > 1 else load.members[0]
        ms = took[name][system.placement == "separate"]

        def loaded(_load, _protocol, clients, _seconds):
            p50 = clients * ms
            return {"requests": 150, "requests_per_s": 1000 / ms, "p50_ms": p50, "p99_ms": 2 * p50, "resident_mb": 1}

        yield SimpleNamespace(load=loaded)

    monkeypatch.setattr(members, "running", running)
    monkeypatch.setattr(members, "workload", lambda _, precision: workload("embedded", precision))
    return [row for part in members.parts(1.0) for row in part.rows()]


def test_the_ensemble_is_beside_its_slowest_member(rows):
    shown = MEMBERS_ALONE.summary(rows * 2)
    assert len(shown) == len(PLACEMENTS) * len(SERVED) * len(CLIENTS)
    more = {(row["where"], row["clients"]): (row["more_p50"], row["more_p99"]) for row in shown if "slowest" in row}
    assert more == {
        ("one process", 1): (5.0, 10.0),
        ("one process", 8): (40.0, 80.0),
        ("a process per node", 1): (12.0, 24.0),
        ("a process per node", 8): (96.0, 192.0),
    }
    found = MEMBERS_ALONE.compare(shown)
    assert set(found) == {each.subject for each in reported.of("members")}
    assert list(found.values()) == ["p50 +5.0 to +96.0 ms, p99 +10.0 to +192.0 ms"]


def test_too_few_requests_of_either_are_not_compared(rows):
    assert MEMBERS_ALONE.compare(MEMBERS_ALONE.summary(rows)) == {}


def test_a_server_that_failed_has_its_row(rows):
    failed = [{"placement": "colocated", "served": TOGETHER, "error": "no room"}, *rows[:4]]
    table = MEMBERS_ALONE.table(MEMBERS_ALONE.summary(failed))
    assert table.notes[0].startswith("one process: not measured: no room")

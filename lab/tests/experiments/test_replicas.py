"""The shipped configuration's replicas are compared with fixed counts that have no more late requests."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from graph.config import parse
from lab.experiments import replicas
from lab.experiments.replicas import COUNTS, MEMBER_NODES, POLICIES, REPLICAS, SHIPPED, config
from packages.capacity.tests.load.loads import made
from scripts.shipped import shipped


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_fixes_the_members_alone(count):
    found, ours = config(count), config(None)
    assert ours == yaml.safe_load(shipped("serve_config.yaml").read_text())
    parse(found["applications"][0]["args"])
    for one, other in zip(found["applications"][0]["deployments"], ours["applications"][0]["deployments"], strict=True):
        if one["name"] in MEMBER_NODES:
            assert one["num_replicas"] == count
            assert "autoscaling_config" not in one
        else:
            assert one == other


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Servers of a capacity of 100/s; one request of ten is late with two replicas, and none with more."""
    now, peaks = [], []
    (tmp_path / "one.jpg").write_bytes(b"image")

    @contextmanager
    def serving(configuration):
        now[:] = [configuration]
        yield "http://one"

    def counted(target, mode, seconds, deployments):
        assert deployments == MEMBER_NODES
        peaks.append(len(mode.times))
        nodes = {each["name"]: each for each in now[0]["applications"][0]["deployments"]}
        count = nodes["ResNet"].get("num_replicas")
        slow = 0.2 if count == min(COUNTS) else 0.01
        sent = made(*((n, n, n + (slow if n % 10 == 0 else 0.01), 200, 0) for n in range(100)))
        return sent, [2 * (count or 1), 2 * (count or 2)]

    monkeypatch.setattr(replicas, "serving", serving)
    monkeypatch.setattr(replicas, "counted", counted)
    monkeypatch.setattr(replicas, "measure", lambda *_: SimpleNamespace(requests=1, requests_per_s=100.0))
    monkeypatch.setattr(replicas, "photographs", lambda _: (tmp_path / "one.jpg",))
    found = [row for part in replicas.parts(20.0) for row in part.rows()]
    assert len(set(peaks[: len(POLICIES)])) == 1
    return REPLICAS.summary(found)


def test_every_policy_gets_the_same_trace_up_to_a_share_of_the_capacity(rows):
    assert {row["peak"] for row in rows} == {80.0}
    assert [row["policy"] for row in rows[: len(POLICIES)]] == list(POLICIES)


def test_the_shipped_configuration_is_compared_with_the_fewest_replicas_that_are_as_quick(rows):
    at = {row["policy"]: row for row in rows if row["trace"] == "bursts"}
    assert [at[policy]["share"] for policy in POLICIES] == [0.0, 10.0, 0.0, 0.0]
    assert [at[policy]["replica_s"] for policy in POLICIES] == [60, 80, 120, 160]
    used = "the shipped configuration uses 50 % of the replica-seconds of fixed, 3 replicas"
    assert f"bursts: {used}, the fewest with no more late requests." in replicas.notes(rows)


def test_no_fixed_count_may_be_as_quick(rows):
    late = [{**row, "share": 5.0} if row["policy"] != SHIPPED else row for row in rows]
    assert replicas.notes(late)[0] == "a day: no fixed count has as few late requests as the shipped configuration."


def test_a_capacity_that_was_not_measured_is_the_row_s_error(monkeypatch):
    @contextmanager
    def serving(_):
        yield "http://one"

    monkeypatch.setattr(replicas, "serving", serving)
    monkeypatch.setattr(replicas, "target", lambda url: url)
    monkeypatch.setattr(replicas, "measure", lambda *_: SimpleNamespace(requests=0, first_error="HTTP 503"))
    [row] = replicas.parts(1.0)[0].rows()
    assert "no request was answered: HTTP 503" in row["error"]

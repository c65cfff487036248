"""How many replicas a p99 needs, and when they come and go."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from deployments.contract.errors import ConfigurationError
from deployments.observe.observer import AutoscalingStats
from ensemble_features.scaling import LatencyTarget, Load, arriving, measured, needed, waiting_longer


@dataclass
class Point:
    timestamp: float
    value: float


def metrics(rate, alone_s=0.02, replicas=1, under_way=0.0, seconds=2.0, spread=1.0):
    """What so many replicas report that share a rate."""
    each = {f"r{i}": [Point(0.0, 5.0), Point(seconds, 5.0 + rate * seconds / replicas)] for i in range(replicas)}
    alone = {name: [Point(0.0, alone_s)] for name in each}
    spreads = {name: [Point(0.0, spread)] for name in each}
    return {
        "arrived": each,
        "alone_s": alone,
        "spread": spreads,
        "alone_calls": {name: [Point(0.0, 10.0)] for name in each},
        "running_requests": {"r0": [Point(0.0, under_way)]},
    }


@dataclass
class Deployment:
    """A deployment as its policy sees it."""

    policy: LatencyTarget = field(default_factory=lambda: LatencyTarget(50, keep_s=60))
    now: float = 0.0
    replicas: int = 1
    least: int = 1
    follows: bool = True

    def tick(self, seconds, reported):
        self.now += seconds
        seen = SimpleNamespace(
            deployment_name="Ingress",
            raw_metrics=reported,
            target_num_replicas=self.replicas,
            capacity_adjusted_min_replicas=self.least,
            capacity_adjusted_max_replicas=10,
            current_time=self.now,
        )
        wanted, _ = self.policy(seen)
        self.replicas = wanted if self.follows else self.replicas
        return wanted


def simulated_late(rate, service_s, servers, wait_s, exponential, calls=200_000):
    """The share of Poisson arrivals at a queue that wait longer, counted."""
    random, free, now, late = Random(1), [0.0] * servers, 0.0, 0
    for _ in range(calls):
        now += random.expovariate(rate)
        begins = max(now, first := min(free))
        free[free.index(first)] = begins + (random.expovariate(1 / service_s) if exponential else service_s)
        late += begins - now > wait_s
    return late / calls


@pytest.mark.parametrize(("rate", "servers"), [(30, 1), (60, 2), (150, 4)])
def test_the_tail_is_that_of_a_queue(rate, servers):
    counted = simulated_late(rate, 0.02, servers, 0.03, exponential=True)
    assert waiting_longer(Load(rate, 0.02), servers, 0.03) == pytest.approx(counted, abs=0.02)


@pytest.mark.parametrize("spread", [0.05, 1.0])
@pytest.mark.parametrize("rate", [5, 25, 60, 120, 200])
def test_what_is_needed_holds_where_every_call_takes_equally_long(rate, spread):
    replicas = needed(Load(rate, 0.02, spread), 0.05, 0.01, 1, 50)
    assert simulated_late(rate, 0.02, replicas, 0.03, exponential=False) <= 0.01
    # A third would be late, or never done.
    assert rate < 60 or simulated_late(rate, 0.02, replicas // 3, 0.03, exponential=False) > 0.01


def test_durations_that_hardly_vary_need_fewer_replicas():
    assert needed(Load(24, 0.025, 0.0), 0.05, 0.01, 1, 6) < needed(Load(24, 0.025), 0.05, 0.01, 1, 6)


def test_replicas_that_work_on_several_calls_are_fewer():
    load = Load(400, 0.02)
    assert needed(load, 0.05, 0.01, 4, 50) < needed(load, 0.05, 0.01, 1, 50)


def test_a_target_below_what_a_call_takes_gets_as_many_as_let_none_wait():
    assert needed(Load(50, 0.1), 0.05, 0.01, 1, 40) > 6
    assert needed(Load(50, 0.1), 0.05, 0.01, 1, 4) == 4
    assert needed(Load(0, 0.1), 0.05, 0.01, 1, 4) == 1


def test_replicas_are_counted_together():
    assert measured(metrics(60, replicas=3, spread=0.3)) == (Load(pytest.approx(60), 0.02, 0.3), 0)


def test_one_disturbance_is_not_taken_for_the_spread_of_durations():
    load, _ = measured(metrics(60, spread=7.0))
    assert load.spread == 1


def test_calls_that_piled_up_count_besides():
    assert measured(metrics(60, under_way=64.4)) == (Load(pytest.approx(60), 0.02), pytest.approx(60))


def counted_calls(*rates):
    """What a replica reports every half second, of a rate in each second."""
    points = [Point(0.0, 0.0)]
    for rate in [rate for rate in rates for _ in range(2)]:
        points.append(Point(points[-1].timestamp + 0.5, points[-1].value + rate / 2))
    return points


def test_a_burst_counts_before_it_is_in_the_mean():
    steady, burst = [18] * 10, [18] * 8 + [60] * 2
    found, half = arriving([counted_calls(*burst)]), [rate / 2 for rate in burst]
    assert arriving([counted_calls(*steady)]) == pytest.approx(18)
    assert found > 1.5 * 26.4
    assert arriving([counted_calls(*half)] * 2) == pytest.approx(found)


def test_chance_is_not_taken_for_a_burst():
    draw = np.random.default_rng(0)
    found = [arriving([counted_calls(*draw.poisson(18, 10))]) for _ in range(200)]
    # A mean over ten seconds itself varies by 1.3.
    assert np.mean([each > 18 + 3 * 1.34 for each in found]) < 0.05


@pytest.mark.parametrize("reported", [{}, {"arrived": {"r0": [Point(1.0, 3.0)]}}, None])
def test_without_reports_the_number_stays(reported, caplog):
    deployment = Deployment(replicas=3)
    caplog.set_level("INFO", logger="ray.serve")
    assert [deployment.tick(1, reported) for _ in range(3)] == [3, 3, 3]
    said = [record for record in caplog.records if "no replica reports its calls" in record.getMessage()]
    assert len(said) == 1


def test_it_grows_at_once_and_shrinks_to_what_the_last_while_needed():
    deployment = Deployment()
    assert deployment.tick(1, metrics(1)) == 1
    most = deployment.tick(1, metrics(120))
    assert most >= 4
    assert deployment.tick(30, metrics(1)) == most
    between = deployment.tick(29, metrics(60))
    assert between == most
    assert 1 < deployment.tick(10, metrics(1)) < most
    assert deployment.tick(60, metrics(1)) == 1


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Decisions, each by its labels."""
    found = []
    counter = SimpleNamespace(add=lambda *values: found.append(values))
    monkeypatch.setattr("ensemble_features.scaling.TaggedCounter", lambda *_: counter)
    monkeypatch.setattr("ensemble_features.scaling.report_counters", lambda: None)
    return found


def test_as_many_as_there_are_at_least_are_no_decision(counted):
    deployment = Deployment(replicas=3, least=3)
    assert [deployment.tick(1, metrics(1)) for _ in range(3)] == [3, 3, 3]
    assert not counted


def test_a_decision_that_is_not_yet_followed_is_counted_once(counted):
    deployment = Deployment(replicas=3, follows=False)
    assert [deployment.tick(1, metrics(1)) for _ in range(3)] == [1, 1, 1]
    assert counted == [("Ingress", "shrink")]


def test_each_decision_is_counted_with_its_reason(counted):
    deployment = Deployment()
    for seconds, reported in [
        (1, {}),
        (1, {}),
        (1, metrics(100)),
        (1, metrics(100)),
        (1, metrics(100, under_way=250)),
        (90, metrics(1)),
        (1, metrics(1, alone_s=0.06)),
    ]:
        deployment.tick(seconds, reported)
    reasons = ["unreported", "rate", "backlog", "shrink", "rate", "unreachable"]
    assert counted == [("Ingress", reason) for reason in reasons]


@pytest.mark.parametrize("given", [{"p99_ms": 0}, {"p99_ms": "50"}, {"p99_ms": 50, "at_a_time": 0.5}])
def test_a_promise_that_is_none_is_refused(given):
    with pytest.raises(ConfigurationError, match="must be a number above 0"):
        LatencyTarget(**given)


def test_only_a_call_that_is_alone_says_how_long_one_takes():
    work = AutoscalingStats()
    with work.call():
        assert work.stats()["alone_s"] == 0
        with work.call():
            assert work.under_way == 2
        assert work.stats()["alone_calls"] == 0
    assert (work.under_way, work.arrived) == (0, 2)
    said = work.stats()
    assert said["alone_s"] > 0
    with pytest.raises(ValueError, match="failed"), work.call():
        raise ValueError("failed")
    assert work.under_way == 0
    assert work.stats() == said | {"arrived": 3}


def test_a_disturbance_of_some_seconds_changes_neither_the_duration_nor_its_spread(monkeypatch):
    times = iter(x for i in range(300) for x in (i, i + (0.02 if i % 8 else 0.5)))
    monkeypatch.setattr("deployments.observe.observer.time.perf_counter", lambda: next(times))
    work = AutoscalingStats()
    for _ in range(300):
        with work.call():
            pass
    assert work.stats() == pytest.approx({"arrived": 300, "alone_s": 0.02, "spread": 0, "alone_calls": 300}, abs=1e-4)


def test_a_new_replica_has_little_to_say():
    reported = metrics(60, replicas=3)
    reported["alone_s"] |= {"r1": [Point(0.0, 0.2)], "r2": [Point(0.0, 0.3)]}
    reported["alone_calls"] |= {"r0": [Point(0.0, 50.0)]}
    load, _ = measured(reported)
    assert load.alone_s == 0.02

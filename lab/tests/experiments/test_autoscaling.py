"""Policies are counted by late requests and replicas, beside the fewest fixed replicas that suffice."""

import json
from collections import Counter

import pytest

from graph.config import parse
from lab.experiments import autoscaling
from lab.experiments.autoscaling import AUTOSCALING, DECLARED, TOGETHER, TRACES, arrivals, config, late_share
from packages.capacity.tests.load.loads import made


@pytest.mark.parametrize("policy", DECLARED["policies"])
def test_a_policy_is_a_configuration(policy):
    application = config(DECLARED["policies"][policy])["applications"][0]
    parse(application["args"])
    [deployment] = application["deployments"]
    assert ("autoscaling_config" in deployment) != ("num_replicas" in deployment)


def test_every_policy_is_served_once_for_each_trace_two_at_a_time():
    assert Counter(policy for pair in TOGETHER for policy in pair) == Counter(list(DECLARED["policies"]))
    assert len(autoscaling.parts(1.0)) == len(TRACES) * len(TOGETHER)


def test_requests_that_wait_too_long_are_late():
    # Each takes 20 ms: the third of three that come at once ends after 60 ms.
    together = [0.0, 0.0, 0.0]
    assert [late_share(together, replicas) for replicas in (1, 2)] == [pytest.approx(1 / 3), 0.0]


@pytest.mark.parametrize("trace", TRACES)
def test_the_fewest_replicas_suffice_and_one_less_does_not(trace):
    seconds = 60.0
    times = arrivals(TRACES[trace], seconds).times
    replicas, late = autoscaling.fewest(trace, seconds)
    assert late_share(times, replicas) == late <= autoscaling.LATE < late_share(times, replicas - 1)


def test_a_p99_of_too_many_failed_requests_is_none_and_the_row_is_valid_json():
    failed = made(*((n, n, n + 0.01, 503 if n % 10 == 0 else 200, 0) for n in range(100)))
    row = autoscaling.summary(failed, [2, 4], 100.0)
    assert (row["p99_ms"], row["late"], row["replica_s"]) == (None, 10, 300)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    [line] = AUTOSCALING.table(autoscaling.shown([{"trace": "a day", "policy": "one", "fixed_s": 400, **row}])).lines
    assert "more than 1 % failed" in line


def test_replicas_are_compared_with_the_fewest_that_suffice():
    row = {"requests": 100, "late": 1, "p50_ms": 20.0, "p99_ms": 40.0, "replica_s": 300, "fixed_s": 400}
    rows = autoscaling.shown([{"trace": trace, "policy": "one", **row} for trace in TRACES])
    assert [each["of_fewest"] for each in rows] == [pytest.approx(300 / each["fewest"]) for each in rows]
    [line] = AUTOSCALING.table(rows).lines
    assert line[0] == "one"
    assert line[-2:] == [f"{each['of_fewest']:.0f}" for each in rows]

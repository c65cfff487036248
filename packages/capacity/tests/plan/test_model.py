"""Predictions against what queueing theory and arithmetic say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan.model import FIGURES, Check, Interval, bounded, predict, student
from packages.capacity.tests.plan.profiles import loops, profile


def test_a_measured_loop_is_predicted_as_it_was_measured():
    found = predict(profile(loops=loops(100, 150, 300)), Closed(2))
    assert found.requests_per_s == pytest.approx(150)
    assert (found.p50_ms, found.p99_ms) == pytest.approx((1000 * 2 / 150,) * 2)
    assert found.cpu == pytest.approx(150 * 2.0 / 1000)
    assert (found.memory_mb, found.refused) == (900, 0)


def test_clients_between_and_beyond_the_measured_ones():
    known = profile(loops=loops(100, 150, 300))
    assert 150 < predict(known, Closed(3)).requests_per_s < 300
    many = predict(known, Closed(40))
    assert many.requests_per_s == pytest.approx(300)
    assert many.p50_ms == pytest.approx(1000 * 40 / 300)


def test_a_loop_that_was_disturbed_is_as_fast_as_one_of_fewer_clients():
    assert predict(profile(loops=loops(100, 150, 90)), Closed(4)).requests_per_s == pytest.approx(150)


def test_more_cores_are_more_servers_that_share_the_clients():
    known = profile(loops=loops(100, 150, 300))
    one, eight = predict(known, Closed(2)), predict(known, Closed(16), 16)
    assert eight.requests_per_s == pytest.approx(8 * one.requests_per_s)
    assert (eight.p99_ms, eight.cpu) == pytest.approx((one.p99_ms, 8 * one.cpu))
    assert eight.memory_mb == 8 * 500 + 400
    # Half a client at each server sends half as much.
    assert predict(known, Closed(4), 16).requests_per_s == pytest.approx(400)


def test_an_open_loop_waits_as_a_queue_with_one_server_does():
    # M/M/1 at a load of 0.5: half of the requests find none, and one of a hundred finds six or more.
    found = predict(profile(), Arrivals(50))
    assert found.requests_per_s == 50
    assert found.intervals["requests_per_s"] == (50, 50)
    assert (found.p50_ms, found.p99_ms) == pytest.approx((10, 70))
    assert found.refused == pytest.approx(0, abs=1e-9)


def test_the_latencies_of_a_loop_are_those_of_an_open_one():
    slow = [loop for loop in loops(100, 100)]
    shape = (5.0, 8.0, 9.0, 10.0, 40.0, 50.0)
    spread = tuple(type(loop)(loop.clients, loop.requests_per_s, shape, 2.0) for loop in slow)
    found = predict(profile(loops=spread), Arrivals(1))
    assert found.p50_ms == pytest.approx(8, rel=0.02)
    assert found.p99_ms == pytest.approx(40, rel=0.1)


def test_more_than_it_answers_is_refused_and_waits_for_all_in_flight():
    found = predict(profile(most_in_flight=64), Arrivals(300))
    assert found.requests_per_s == pytest.approx(100, rel=0.01)
    assert found.refused == pytest.approx(2 / 3, rel=0.01)
    assert found.p99_ms == pytest.approx(640, rel=0.05)


def test_an_interval_is_as_wide_as_predictions_were_wrong():
    # Of 100,000 ratios drawn alike, about as many lie in the interval of a dozen others as it promises.
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        drawn = np.exp(random.normal(0.1, 0.2, 13))
        _, (low, high) = bounded(100.0, list(drawn[:12]))
        inside += low <= 100 * drawn[12] <= high
    assert 0.92 <= inside / 400 <= 0.98
    middle, (low, high) = bounded(100.0, [0.9, 0.9, 0.9])
    assert (middle, low, high) == pytest.approx((90, 90, 90))
    assert bounded(100.0, [1.0, 1.0]) == (100.0, (0.0, math.inf))
    # From a table of Student's t.
    assert [student(n) for n in (3, 5, 11, 30)] == pytest.approx([3.182, 2.571, 2.201, 2.042], rel=0.02)


def test_a_wide_interval_is_said():
    assert predict(profile(checks=wrong(2.0)), Closed(8)).intervals["requests_per_s"].is_wide
    assert not predict(profile(checks=wrong(1.05)), Closed(8)).intervals["p99_ms"].is_wide


def test_the_rate_is_bounded_by_closed_checks_unless_the_capacity_is_surely_higher():
    # The capacity is 74 to 136 requests per second; open checks answered ten times as much as was predicted.
    open_ones = tuple(Check(False, 1000, dict.fromkeys(FIGURES, ratio)) for ratio in (9.0, 10.0, 11.0))
    known = profile(checks=(*profile().checked(closed=True), *open_ones))
    assert predict(known, Arrivals(70)).intervals["requests_per_s"] == (70, 70)
    low, high = predict(known, Arrivals(95)).intervals["requests_per_s"]
    assert 60 < low < 75
    assert high == 95
    above = predict(known, Arrivals(500))
    assert above.requests_per_s == pytest.approx(100, rel=0.01)
    assert above.intervals["requests_per_s"] == pytest.approx((73.6, 135.9), rel=0.01)


@pytest.mark.parametrize(("inside", "outside"), [(Closed(48), Closed(49)), (Arrivals(80), Arrivals(81))])
def test_latencies_above_the_checked_loads_are_unknown(inside, outside):
    assert "unknown" not in predict(profile(), inside).cells
    assert predict(profile(), outside).cells[2:4] == ["unknown", "unknown"]
    # So many cores share the load.
    assert "unknown" not in predict(profile(), outside, 4).cells


def test_an_interval_in_words():
    shown = [str(Interval(*each)) for each in ((20.0, 1234.5), (100.0, 1234.5), (35.4, 35.4), (0.0, math.inf))]
    assert shown == ["20.0 to 1,234.5", "100 to 1,234", "35.4", "unknown"]


def wrong(factor):
    """Checks of predictions that were wrong by a factor, as often above as below."""
    ratios = [factor, 1 / factor] * 3
    return tuple(Check(True, 48, dict.fromkeys(FIGURES, ratio)) for ratio in ratios)

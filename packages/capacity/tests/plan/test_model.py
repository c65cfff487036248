"""Predictions against what arithmetic says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ensemble_capacity.plan.model import STUDENT, Interval, bounded, predict
from packages.capacity.tests.plan.profiles import loop, loops, profile


def test_a_measured_loop_is_predicted_as_it_was_measured():
    found = predict(profile(loops=loops(100, 150, 300)), 2, 2)
    assert found.requests_per_s == pytest.approx(150)
    assert (found.p50_ms, found.p99_ms) == pytest.approx((1000 * 2 / 150,) * 2)
    assert found.cpu == pytest.approx(150 * 2.0 / 1000)
    assert found.memory_mb == 900


def test_clients_between_and_beyond_the_measured_ones():
    known = profile(loops=loops(100, 150, 300))
    assert 150 < predict(known, 3, 2).requests_per_s < 300
    many = predict(known, 40, 2)
    assert many.requests_per_s == pytest.approx(300)
    assert many.p50_ms == pytest.approx(1000 * 40 / 300)


def test_a_loop_that_was_disturbed_is_as_fast_as_one_of_fewer_clients():
    assert predict(profile(loops=loops(100, 150, 90)), 4, 2).requests_per_s == pytest.approx(150)


def test_more_cores_are_more_servers_that_share_the_clients():
    known = profile(loops=loops(100, 150, 300))
    one, eight = predict(known, 2, 2), predict(known, 16, 16)
    assert eight.requests_per_s == pytest.approx(8 * one.requests_per_s)
    assert (eight.p99_ms, eight.cpu) == pytest.approx((one.p99_ms, 8 * one.cpu))
    assert eight.memory_mb == 8 * 500 + 400
    # Half a client at each server sends half as much.
    assert predict(known, 4, 16).requests_per_s == pytest.approx(400)


@pytest.mark.parametrize("count", STUDENT)
def test_an_interval_is_as_wide_as_predictions_were_wrong(count):
    # Of 4,000 ratios drawn alike, about as many lie in the interval of some others as it promises.
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(4000):
        drawn = np.exp(random.normal(0.1, 0.2, count + 1))
        _, (low, high) = bounded(100.0, list(drawn[1:]))
        inside += low <= 100 * drawn[0] <= high
    assert 0.94 <= inside / 4000 <= 0.96


def test_a_prediction_is_corrected_by_what_was_measured():
    middle, (low, high) = bounded(100.0, [0.9, 0.9, 0.9])
    assert (middle, low, high) == pytest.approx((90, 90, 90))
    assert bounded(100.0, [1.0, 1.0]) == (100.0, (0.0, math.inf))


def test_a_wide_interval_is_said():
    assert predict(profile(checks=wrong(2.0)), 8, 2).intervals["requests_per_s"].is_wide
    assert not predict(profile(checks=wrong(1.05)), 8, 2).intervals["p99_ms"].is_wide


def test_latencies_above_the_checked_loads_are_unknown():
    def latencies(clients, cores=2):
        intervals = predict(profile(), clients, cores).intervals
        return [str(intervals["p50_ms"]) == "unknown", str(intervals["p99_ms"]) == "unknown"]

    assert latencies(48) == [False, False]
    assert latencies(49) == [True, True]
    # So many cores share the load.
    assert latencies(49, 4) == [False, False]


def test_an_interval_in_words():
    shown = [str(Interval(*each)) for each in ((20.0, 1234.5), (100.0, 1234.5), (0.0, math.inf))]
    assert shown == ["20.0 to 1,234.5", "100 to 1,234", "unknown"]


def wrong(factor):
    """Checks of predictions that were wrong by a factor, as often above as below."""
    return tuple(loop(48, 100, ratio) for ratio in [factor, 1 / factor] * 2)

"""Predictions against what queueing theory and arithmetic say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan.calibration import Watched, served
from ensemble_capacity.plan.model import Interval, Model, bounded, predict, student, tail
from ensemble_capacity.plan.profile import FIGURES, Check, Curve, Overhead, Point, Served
from ensemble_capacity.plan.scenario import scenario
from packages.capacity.tests.plan.profiles import NONE, application, curve, profile
from scripts.errors import ScriptError

ALONE = {"max_batch_size": 1, "max_concurrent_batches": 1, "refill_share": 0}


def test_one_client_waits_for_one_image():
    found = predict(scenario(application()), profile(), Closed(1))
    assert found.p50_ms == pytest.approx(1.0, rel=1e-3)
    assert found.requests_per_s == pytest.approx(1000, rel=0.01)
    assert found.cpu == pytest.approx(2.0, rel=0.01)
    assert found.memory_mb == 900


def test_two_members_on_one_core_take_twice_as_long():
    assert predict(scenario(application()), profile(), Closed(1), 1).p50_ms == pytest.approx(2.0, rel=1e-3)


def test_members_together_take_what_was_measured_of_them_together():
    slowed = {"resnet": (curve(together=1.5),), "densenet": (curve(together=1.5),)}
    nodes = {**profile().nodes, **slowed}
    assert predict(scenario(application()), profile(nodes=nodes), Closed(1)).p50_ms == pytest.approx(1.5, rel=1e-3)


def test_an_open_loop_waits_as_long_as_a_queue_with_one_server():
    # M/D/1 at a load of 0.5: the mean wait is 0.5 of the service time; at most 60 % wait for nothing.
    found = predict(scenario(application(**ALONE)), profile(), Arrivals(500))
    assert found.requests_per_s == 500
    assert 1.0 <= found.p50_ms < 1.5
    # The 99th percentile of M/D/1 at 0.5 is 4.2 service times (Crommelin's formula).
    assert found.p99_ms == pytest.approx(4.2, rel=0.15)
    assert found.images == 1


def test_the_tail_of_a_queue_grows_with_its_load():
    waits = [tail(busy) for busy in (0.005, 0.1, 0.5, 0.9, 0.99)]
    assert waits == sorted(waits)
    assert waits[0] == 0
    assert waits[-1] > 100


def test_requests_on_their_way_are_none_that_it_falls_behind_with():
    # 40 ms of waiting elsewhere: of 1,000 requests per second 40 are under way.
    far = Served(Overhead(0.0, 0.01), Overhead(), 0.0, 0.0, 0.0, (40.0,) * len(NONE), 500.0, 200.0, 400.0)
    costly = profile(served={"inline": far, "separate": far})
    found = predict(scenario(application(), cores=16), costly, Arrivals(1000), 16)
    assert found.p50_ms == pytest.approx(42, rel=0.05)
    assert found.p99_ms < 50
    too_many = predict(scenario(application(max_batch_size=1)), profile(), Arrivals(1300))
    assert math.isinf(too_many.p99_ms)


def test_more_than_it_answers_has_no_latency_and_is_refused():
    found = predict(scenario(application(max_in_flight=64, **ALONE)), profile(), Arrivals(3000))
    assert math.isinf(found.p99_ms)
    assert found.requests_per_s == pytest.approx(1000, rel=0.03)
    assert found.refused > 0.5
    assert found.limit == "batches in flight"


def test_clients_that_send_again_share_a_batch():
    # A batch costs 10 ms however large it is.
    flat = Curve(1, 1, (Point(1, 10.0, 10.0), Point(16, 10.0, 10.0)), (1.0, 1.0))
    nodes = {**profile().nodes, "resnet": (flat,), "densenet": (flat,)}
    small = predict(scenario(application(max_batch_size=1)), profile(nodes=nodes), Closed(8))
    large = predict(scenario(application(max_batch_size=8)), profile(nodes=nodes), Closed(8))
    assert small.images == 1
    assert large.images == pytest.approx(8, rel=0.01)
    assert large.requests_per_s == pytest.approx(8 * small.requests_per_s, rel=0.05)


def test_an_event_loop_is_what_limits_on_many_cores_and_replicas_remove_the_limit():
    loop = Served(Overhead(0.0, 2.0), Overhead(), 0.0, 0.0, 0.0, NONE, 500.0, 200.0, 400.0)
    costly = profile(served={"inline": loop, "separate": loop})
    app = application()
    one = predict(scenario(app, cores=16), costly, Closed(64), 16)
    app["deployments"][0]["num_replicas"] = 4
    four = predict(scenario(app, cores=16), costly, Closed(64), 16)
    assert one.requests_per_s == pytest.approx(500, rel=0.05)
    assert one.limit == "event loop of the ingress"
    assert four.requests_per_s > 3 * one.requests_per_s
    assert four.memory_mb == one.memory_mb + 3 * 500


def test_separate_nodes_cost_their_calls():
    call = Served(Overhead(), Overhead(1.0, 0.0), 0.0, 0.0, 0.0, NONE, 300.0, 200.0, 400.0)
    costly = profile(served={"inline": profile().served["inline"], "separate": call})
    separate = predict(scenario(application("serve_config.yaml")), costly, Closed(1))
    # Transformer, members, combiner and labeler, one after the other, and 1 ms of computing.
    assert separate.p50_ms == pytest.approx(5.0, rel=0.01)
    assert separate.memory_mb == 400 + 2 * 300 + 5 * 200


def test_calls_to_separate_nodes_wait_while_their_batch_is_in_flight():
    waits = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, (4.0,) * len(NONE), 300.0, 200.0, 400.0)
    separate = profile(served={"inline": profile().served["inline"], "separate": waits})
    given = scenario(application("serve_config.yaml", **ALONE))
    # Four calls of 1 ms, and 1 ms of computing; the next batch of each of the two ingress replicas leaves after them.
    assert predict(given, separate, Closed(1)).p50_ms == pytest.approx(5.0, rel=0.01)
    assert predict(given, separate, Closed(8)).requests_per_s == pytest.approx(2 * 200, rel=0.02)


def test_a_request_waits_as_long_as_those_of_one_client_did():
    late = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, (0.0, 0.0, 0.0, 8.0, 8.0, 8.0), 500.0, 200.0, 400.0)
    found = predict(scenario(application()), profile(served={"inline": late, "separate": late}), Closed(1))
    assert (found.p50_ms, found.p99_ms) == pytest.approx((1.0, 9.0), rel=0.01)


def test_a_profile_of_a_server_is_what_the_server_costs():
    truth = Served(Overhead(0.5, 0.2), Overhead(), 0.1, 0.1, 0.05, (0.5,) * len(NONE), 500.0, 200.0, 400.0, 0.9)
    known, given = profile(served={"inline": truth, "separate": truth}, checks=()), scenario(application())
    watched = []
    for clients in (1, 32):
        seen = predict(given, known, Closed(clients), clients_here=True)
        work = Model(given, known, 2, clients_here=True).work_s(seen.images) * 1000 / seen.images
        cpu_ms = {"ingress": work - 0.1, "node": 0.0, "proxy": 0.1, "rest": 0.0}
        memory = {"ingress": 500.0, "node": 0.0, "proxy": 0.0, "rest": 400.0}
        latency = (seen.p50_ms,) * len(NONE)
        watched.append(Watched(clients, seen.requests_per_s, latency, seen.images, cpu_ms, 0.1, 0.05, memory))
    found = served(profile(served={}), given, *watched)
    assert (found.ingress.batch_ms, found.ingress.image_ms) == pytest.approx((0.5, 0.2), rel=0.02)
    assert found.delays_ms == pytest.approx(truth.delays_ms, rel=0.05)
    assert found.speed == pytest.approx(0.9, rel=0.03)


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
    found = predict(scenario(application()), profile(checks=wrong(2.0)), Closed(8))
    assert found.intervals["requests_per_s"].is_wide
    assert not predict(scenario(application()), profile(checks=wrong(1.05)), Closed(8)).intervals["p99_ms"].is_wide


def test_an_interval_in_words():
    shown = [str(Interval(*each)) for each in ((20.0, 1234.5), (100.0, 1234.5), (35.4, 35.4), (0.0, math.inf))]
    assert shown == ["20.0 to 1,234.5", "100 to 1,234", "35.4", "unknown"]


def wrong(factor):
    """Checks of predictions that were wrong by a factor, as often above as below."""
    ratios = [factor, 1 / factor] * 3
    return tuple(Check(True, dict.fromkeys(FIGURES, ratio)) for ratio in ratios)


def test_a_cascade_asks_the_second_member_about_the_rest():
    app = application("configs/cascade.yaml")
    names = app["args"]["ensemble"]["cascade"]["order"]
    nodes = {**profile().nodes, **{name: (curve(),) for name in names}}
    every = predict(scenario(app, [0.0] * (len(names) - 1)), profile(nodes=nodes), Closed(1))
    most = predict(scenario(app, [0.75] * (len(names) - 1)), profile(nodes=nodes), Closed(1))
    assert every.p50_ms == pytest.approx(len(names), rel=0.01)
    # The second member gets every fourth image.
    assert most.p50_ms == pytest.approx(1.25, rel=0.01)
    assert most.cpu <= every.cpu
    with pytest.raises(ScriptError, match="--exits"):
        scenario(app)


def test_what_is_not_known_can_not_be_predicted():
    remote = {"name": "far", "kind": "open_inference", "url": "grpc://127.0.0.1:1"}
    app = application()
    app["args"]["members"].append(remote)
    with pytest.raises(ScriptError, match="server of its own"):
        scenario(app)
    with pytest.raises(ScriptError, match="the profile has no resnet"):
        predict(scenario(application()), profile(nodes={"JpegTransformer": (curve(),)}), Closed(1))

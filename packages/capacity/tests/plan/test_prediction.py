"""Predictions against what queueing theory and arithmetic say."""

from __future__ import annotations

import math

import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan.fitting import Watched, explained_ms, served
from ensemble_capacity.plan.prediction import predict
from ensemble_capacity.plan.profile import Curve, Overhead, Point, Served
from packages.capacity.tests.plan.profiles import NONE, application, curve, profile
from scripts.errors import ScriptError

ALONE = {"max_batch_size": 1, "max_concurrent_batches": 1, "refill_share": 0}


def test_one_client_waits_for_one_image():
    found = predict(setting(application()), profile(), Closed(1))
    assert found.p50_ms == pytest.approx(1.0, rel=1e-3)
    assert found.requests_per_s == pytest.approx(1000, rel=0.01)
    assert found.cpu == pytest.approx(2.0, rel=0.01)
    assert found.memory_mb == 900


def test_two_members_on_one_core_take_twice_as_long():
    assert predict(setting(application()), profile(), Closed(1), 1).p50_ms == pytest.approx(2.0, rel=1e-3)


def test_members_together_take_what_was_measured_of_them_together():
    slowed = {"resnet": (curve(together=1.5),), "densenet": (curve(together=1.5),)}
    nodes = {**profile().nodes, **slowed}
    assert predict(setting(application()), profile(nodes=nodes), Closed(1)).p50_ms == pytest.approx(1.5, rel=1e-3)


def test_an_open_loop_waits_as_long_as_a_queue_with_one_server():
    # M/D/1 at a load of 0.5: the mean wait is 0.5 of the service time; at most 60 % wait for nothing.
    found = predict(setting(application(**ALONE)), profile(), Arrivals(500), requests=8000)
    assert found.requests_per_s == pytest.approx(500, rel=0.05)
    assert 1.0 <= found.p50_ms < 1.5
    # The 99th percentile of M/D/1 at 0.5 is 4.2 service times (Crommelin's formula).
    assert found.p99_ms == pytest.approx(4.2, rel=0.15)
    assert found.images == 1


@pytest.mark.parametrize("requests", [400, 3000])
def test_requests_on_their_way_are_none_that_it_falls_behind_with(requests):
    # 40 ms of waiting elsewhere: of 1,000 requests per second 40 are under way.
    far = Served(Overhead(0.0, 0.01), Overhead(), 0.0, 0.0, 0.0, (40.0,) * len(NONE), 500.0, 200.0, 400.0)
    costly = profile(served={"inline": far, "separate": far})
    found = predict(setting(application(), cores=16), costly, Arrivals(1000), 16, requests=requests)
    assert found.p50_ms == pytest.approx(42, rel=0.05)
    assert found.p99_ms < 50
    too_many = predict(setting(application(max_batch_size=1)), profile(), Arrivals(1300), requests=requests)
    assert math.isinf(too_many.p99_ms)


def test_more_than_it_answers_has_no_latency_and_is_refused():
    found = predict(setting(application(max_in_flight=64, **ALONE)), profile(), Arrivals(3000))
    assert math.isinf(found.p99_ms)
    assert found.requests_per_s == pytest.approx(1000, rel=0.03)
    assert found.refused > 0.5
    assert found.limit == "cores"


def test_clients_that_send_again_share_a_batch():
    # A batch costs 10 ms however large it is.
    flat = Curve(1, 1, (Point(1, 10.0, 10.0), Point(16, 10.0, 10.0)), (1.0, 1.0))
    nodes = {**profile().nodes, "resnet": (flat,), "densenet": (flat,)}
    small = predict(setting(application(max_batch_size=1)), profile(nodes=nodes), Closed(8))
    large = predict(setting(application(max_batch_size=8)), profile(nodes=nodes), Closed(8))
    assert small.images == 1
    assert large.images == pytest.approx(8, rel=0.01)
    assert large.requests_per_s == pytest.approx(8 * small.requests_per_s, rel=0.05)


def test_an_event_loop_is_what_limits_on_many_cores_and_replicas_remove_the_limit():
    loop = Served(Overhead(0.0, 2.0), Overhead(), 0.0, 0.0, 0.0, NONE, 500.0, 200.0, 400.0)
    costly = profile(served={"inline": loop, "separate": loop})
    app = application()
    one = predict(setting(app, cores=16), costly, Closed(64), 16)
    app["deployments"][0]["num_replicas"] = 4
    four = predict(setting(app, cores=16), costly, Closed(64), 16)
    assert one.requests_per_s == pytest.approx(500, rel=0.05)
    assert one.limit == "event loop of the ingress"
    assert four.requests_per_s > 3 * one.requests_per_s
    assert four.memory_mb == one.memory_mb + 3 * 500


def test_separate_nodes_cost_their_calls():
    call = Served(Overhead(), Overhead(1.0, 0.0), 0.0, 0.0, 0.0, NONE, 300.0, 200.0, 400.0)
    costly = profile(served={"inline": profile().served["inline"], "separate": call})
    separate = predict(setting(application("serve_config.yaml")), costly, Closed(1))
    # Transformer, members, combiner and labeler, one after the other, and 1 ms of computing.
    assert separate.p50_ms == pytest.approx(5.0, rel=0.01)
    assert separate.memory_mb == 400 + 2 * 300 + 5 * 200


def test_calls_to_separate_nodes_wait_while_their_batch_is_in_flight():
    waits = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, (4.0,) * len(NONE), 300.0, 200.0, 400.0)
    separate = profile(served={"inline": profile().served["inline"], "separate": waits})
    given = setting(application("serve_config.yaml", **ALONE))
    # Four calls of 1 ms, and 1 ms of computing; the next batch of each of the two ingress replicas leaves after them.
    assert predict(given, separate, Closed(1)).p50_ms == pytest.approx(5.0, rel=0.01)
    assert predict(given, separate, Closed(8)).requests_per_s == pytest.approx(2 * 200, rel=0.02)


def test_a_request_waits_as_long_as_those_of_one_client_did():
    late = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, (0.0, 0.0, 0.0, 8.0, 8.0, 8.0), 500.0, 200.0, 400.0)
    found = predict(setting(application()), profile(served={"inline": late, "separate": late}), Closed(1))
    assert (found.p50_ms, found.p99_ms) == pytest.approx((1.0, 9.0), rel=0.01)


def test_a_profile_of_a_server_is_what_the_server_costs():
    truth = Served(Overhead(0.5, 0.2), Overhead(), 0.1, 0.1, 0.05, (0.5,) * len(NONE), 500.0, 200.0, 400.0, 0.9)
    known, given = profile(served={"inline": truth, "separate": truth}), setting(application())
    watched = []
    for clients in (1, 32):
        seen = predict(given, known, Closed(clients), clients_here=True, requests=1000)
        cost = explained_ms(known, given, seen.images) + 0.2 + 0.5 / seen.images
        latency = (seen.p50_ms,) * len(NONE)
        watched.append(
            Watched(clients, seen.requests_per_s, latency, seen.images, cost, 0, 0.1, 0.1, 0.05, (500, 0, 400))
        )
    found = served(profile(served={}), {"applications": [application()]}, watched)
    assert (found.ingress.batch_ms, found.ingress.image_ms) == pytest.approx((0.5, 0.2), rel=0.02)
    assert found.delays_ms == pytest.approx(truth.delays_ms, rel=0.05)
    assert found.speed == pytest.approx(0.9, rel=0.03)


def test_a_cascade_asks_the_second_member_about_the_rest():
    app = application("configs/cascade.yaml")
    names = app["args"]["ensemble"]["cascade"]["order"]
    nodes = {**profile().nodes, **{name: (curve(),) for name in names}}
    every = predict(setting(app, [0.0] * (len(names) - 1)), profile(nodes=nodes), Closed(1))
    most = predict(setting(app, [0.75] * (len(names) - 1)), profile(nodes=nodes), Closed(1))
    assert every.p50_ms == pytest.approx(len(names), rel=0.01)
    assert most.p50_ms == pytest.approx(1.0, rel=0.01)
    assert most.cpu <= every.cpu
    with pytest.raises(ScriptError, match="--exits"):
        setting(app)


def test_what_is_not_known_can_not_be_predicted():
    remote = {"name": "far", "kind": "open_inference", "url": "grpc://127.0.0.1:1"}
    app = application()
    app["args"]["members"].append(remote)
    with pytest.raises(ScriptError, match="server of its own"):
        setting(app)
    with pytest.raises(ScriptError, match="the profile has no resnet"):
        predict(setting(application()), profile(nodes={"JpegTransformer": (curve(),)}), Closed(1))

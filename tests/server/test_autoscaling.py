"""Replicas come and go under load, and no request fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray import serve

from tests.levels import level
from tests.networks import heavy, store
from tests.server.server import Server, config, eventually, post

# Serve's own pace is 10 s and 30 s for the metrics, 30 s and 600 s for the delays.
FAST = {
    "min_replicas": 1,
    "max_replicas": 2,
    "upscale_delay_s": 1,
    "downscale_delay_s": 2,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 2,
}


# The ingress has as many replicas as its p99 needs.
BY_LATENCY = {
    **FAST,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0,
    "look_back_period_s": 2.5,
    "policy": {
        "policy_function": "ensemble_features.scaling:LatencyTarget",
        "policy_kwargs": {"p99_ms": 500, "keep_s": 3},
    },
}


@pytest.fixture
def scaling(tmp_path):
    store(tmp_path, "heavy", heavy())
    deployments = {
        "Ingress": {"autoscaling_config": BY_LATENCY},
        "heavy": {"autoscaling_config": {**FAST, "target_ongoing_requests": 1}},
    }
    content = config(tmp_path, "separate", members=["heavy"], deployments=deployments)
    with Server(content) as running, running.driver():
        yield running


def running_replicas(deployment):
    states = serve.status().applications["ensemble"].deployments[deployment].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


def outcome(response):
    return "200" if response.status_code == 200 else f"{response.status_code} {response.text}"


def test_up_and_down_without_a_failed_request(scaling):
    assert running_replicas("Ingress") == running_replicas("heavy") == 1
    stop = threading.Event()

    def client(_):
        answers = []
        while not stop.is_set():
            answers.append(outcome(post(scaling, level(10))))
        return answers

    with ThreadPoolExecutor(12) as pool:
        clients = [pool.submit(client, i) for i in range(12)]
        try:
            for deployment in ("Ingress", "heavy"):
                assert eventually(lambda name=deployment: running_replicas(name) == 2, 90), deployment
        finally:
            stop.set()
        answers = [answer for future in clients for answer in future.result()]
    assert len(answers) > 50
    assert set(answers) == {"200"}
    # A trickle goes on while the replicas leave.
    trickle = []

    def down(deployment):
        trickle.append(outcome(post(scaling, level(10))))
        return running_replicas(deployment) == 1

    for deployment in ("Ingress", "heavy"):
        assert eventually(lambda name=deployment: down(name), 90), deployment
    assert set(trickle) == {"200"}
    controller = "".join(file.read_text() for file in scaling.ray_logs("serve/controller_*.log"))
    assert "Ingress: 2 replicas instead of 1" in controller

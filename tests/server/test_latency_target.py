"""Replicas come and go as a p99 needs them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.networks import heavy, store
from tests.server.server import Server, config, eventually, post
from tests.server.shared.test_http import level
from tests.server.test_autoscaling import outcome, running_replicas

# More than a replica works on at a time.
CLIENTS = 8
POLICY = {
    "policy_function": "graph.scaling.latency:LatencyTarget",
    "policy_kwargs": {"p99_ms": 500, "keep_s": 3},
}
SCALED = {
    "min_replicas": 1,
    "max_replicas": 2,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 2.5,
    "policy": POLICY,
}


@pytest.fixture(scope="module")
def promising(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    store(repository, "heavy", heavy())
    deployments = {"Ingress": {"autoscaling_config": SCALED}}
    content = config(repository, "inline", members=["heavy"], deployments=deployments)
    with Server(content) as running, running.driver():
        yield running


def test_replicas_go_up_under_load_and_down_again(promising):
    assert eventually(lambda: running_replicas("Ingress") == 1)
    stop = threading.Event()

    def client(_):
        answers = []
        while not stop.is_set():
            answers.append(outcome(post(promising, level(10))))
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, i) for i in range(CLIENTS)]
        try:
            assert eventually(lambda: running_replicas("Ingress") == 2, 90)
        finally:
            stop.set()
        answers = [answer for future in clients for answer in future.result()]
    assert set(answers) == {"200"}
    assert eventually(lambda: running_replicas("Ingress") == 1, 90)
    controller = "".join(file.read_text() for file in promising.ray_logs("serve/controller_*.log"))
    assert "Ingress: 2 replicas instead of 1" in controller
    assert outcome(post(promising, level(10))) == "200"

"""Members that sleep while nobody asks: the first request wakes them, and is answered."""

import pytest
import yaml
from ray import serve

from tests.conftest import ROOT
from tests.server.server import Server, eventually, post

# In place of minutes.
FAST = {"downscale_to_zero_delay_s": 0.5, "metrics_interval_s": 0.5, "look_back_period_s": 1}


@pytest.fixture(scope="module")
def sleeping():
    content = yaml.safe_load((ROOT / "configs" / "scale_to_zero.yaml").read_text())
    [application] = content["applications"]
    for deployment in application["deployments"]:
        deployment.get("autoscaling_config", {}).update(FAST)
    with Server(content) as running, running.driver():
        yield running


def replicas():
    deployments = serve.status().applications["ensemble"].deployments
    return {name: sum(each.replica_states.values()) for name, each in deployments.items()}


def asleep():
    return replicas() == {"Ingress": 1, "ResNet": 0, "DenseNet": 0}


def test_the_first_request_wakes_every_member_and_is_answered(sleeping):
    image = (ROOT / "tests" / "cat.jpg").read_bytes()
    for _ in range(2):
        assert eventually(asleep, 60), replicas()
        answer = post(sleeping, image)
        assert answer.status_code == 200, answer.text
        assert answer.json()["label"] == "cat"
        assert "missing" not in answer.json()
        assert min(replicas().values()) == 1

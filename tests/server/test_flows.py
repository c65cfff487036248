"""What makes the ensemble cheap, over every protocol: a cascade, separate and inline."""

import base64
import json

import httpx
import pytest

from tests.server.clients import Grpc, infer_request
from tests.server.server import Server, config, eventually, post, scrape
from tests.server.shared.test_http import level

MEMBERS = ("brightness", "one")
# In the middle of a step of brightness, and between two of them.
SURE, UNSURE = 16, 32
CASCADE = {"quorum": 1, "patience_ms": 3000, "cascade": {"order": list(MEMBERS), "exit_at": [0.9]}}


@pytest.fixture(scope="module", params=["separate", "inline"])
def server(request, repository):
    """A server whose first member knows how bright a picture is, and whose second says the same of all."""
    with Server(config(repository, request.param, members=MEMBERS, ensemble=CASCADE)) as running:
        yield running


def infer(server, *images, **parameters):
    """The answer's parameters, over HTTP."""
    data = [base64.b64encode(image).decode() for image in images]
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}]
    body = {"inputs": inputs, "parameters": parameters}
    return httpx.post(f"{server.url}/v2/models/ensemble/infer", json=body, timeout=60).json()["parameters"]


def exits(server):
    samples = scrape(server, "ray_ensemble_cascade_exits_total")
    return {name: sum(v for s, v in samples if s["member"] == name) for name in MEMBERS}


def test_a_cascade_asks_on_only_where_it_is_not_sure_and_every_protocol_says_whom(server):
    before = exits(server)
    sure, unsure = (post(server, level(value), members="true").json() for value in (SURE, UNSURE))
    assert (sure["asked"], list(sure["members"])) == (["brightness"], ["brightness"])
    assert (unsure["asked"], list(unsure["members"])) == (["brightness", "one"], ["brightness", "one"])
    assert post(server, level(SURE), quality="full").json()["asked"] == ["brightness", "one"]
    both = [["brightness"], ["brightness", "one"]]
    assert json.loads(infer(server, level(SURE), level(UNSURE))["asked"]) == both
    client = Grpc(server)
    answer = client.stub.ModelInfer(infer_request([level(SURE), level(UNSURE)]), timeout=60)
    client.close()
    assert json.loads(answer.parameters["asked"].string_param) == both
    assert eventually(lambda: exits(server) == {"brightness": before["brightness"] + 3, "one": before["one"] + 4})


def test_a_handle_tells_whom_the_cascade_asked(server):
    from ray import serve

    with server.driver():
        handle = serve.get_app_handle("ensemble")
        assert handle.classify.remote(level(SURE)).result(timeout_s=60).asked == ("brightness",)
        assert handle.classify.remote(level(SURE), quality="full").result(timeout_s=60).asked == MEMBERS


def test_a_quality_that_is_none_is_refused(server):
    answer = post(server, level(SURE), quality="half")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_parameter")


def test_votes_are_refused_while_it_serves(server):
    deployment = "Combiner" if len(server.content["applications"][0]["deployments"]) > 1 else "Ingress"
    change = {"method": "majority_vote"}
    server.reconfigure(change if deployment == "Combiner" else {"nodes": {"Combiner": change}}, deployment)
    assert eventually(lambda: sum(value for _, value in scrape(server, "ray_ensemble_config_refused_total")) == 1)
    assert post(server, level(SURE)).json()["asked"] == ["brightness"]

"""A member lost or late: the others answer, and the answers say so."""

import base64
import json
import signal

import httpx
import pytest

from tests.levels import level
from tests.server.clients import Grpc, infer_request
from tests.server.load import Load, replicas
from tests.server.server import Server, config, eventually, post, scrape

MEMBERS = ("one", "brightness")


@pytest.fixture(scope="module")
def server(repository):
    """A server of two members of which one is enough, each with one replica."""
    with Server(config(repository, "separate", members=MEMBERS, ensemble={"quorum": 1, "patience_ms": 500})) as running:
        yield running


def missing(server):
    return post(server, level(10)).json().get("missing")


def counted(server):
    """The degraded answers that lacked `one`, because it did not answer."""
    samples = scrape(server, "ray_ensemble_degraded_answers_total")
    return sum(v for s, v in samples if (s["member"], s["reason"]) == ("one", "no_replica"))


def test_a_killed_member_is_left_out_until_serve_has_replaced_it(server):
    [victim] = replicas(server, "one")
    assert missing(server) is None
    with Load(server) as load:
        victim.kill()
        assert eventually(lambda: load.missing["one", "no_replica"] > 20, 60)
        assert eventually(lambda: missing(server) is None, 90)
    assert set(load.statuses) == {200}
    # No batch has waited out its patience for the member.
    assert set(load.missing) == {("one", "no_replica")}


def test_a_frozen_member_is_left_out_and_every_protocol_says_so(server):
    [frozen] = replicas(server, "one")
    before = counted(server)
    with Load(server) as load:
        frozen.send_signal(signal.SIGSTOP)
        try:
            assert eventually(lambda: load.missing, 30)
            answer = post(server, level(250), members="true").json()
            assert answer["missing"] == {"one": "no_replica"}
            assert list(answer["members"]) == list(answer["model_versions"]) == ["brightness"]
            assert answer["label"] == answer["members"]["brightness"]["label"] == "level7"
            data = base64.b64encode(level(10)).decode()
            inputs = [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [data]}]
            rest = httpx.post(f"{server.url}/v2/models/ensemble/infer", json={"inputs": inputs}, timeout=60)
            assert json.loads(rest.json()["parameters"]["missing"]) == [{"one": "no_replica"}]
            client = Grpc(server)
            grpc = client.stub.ModelInfer(infer_request([level(10)]), timeout=60)
            client.close()
            assert json.loads(grpc.parameters["missing"].string_param) == [{"one": "no_replica"}]
        finally:
            frozen.send_signal(signal.SIGCONT)
        assert eventually(lambda: missing(server) is None, 30)
    assert set(load.statuses) == {200}
    assert eventually(lambda: counted(server) - before >= load.missing["one", "no_replica"])

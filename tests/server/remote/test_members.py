"""Members of the default ensemble on another server: one line of YAML, and the answers stay the same."""

import asyncio
import json

import httpx
import pytest

from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.members.openvino import OpenVino
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_interop.remote.open_inference import OpenInference
from ensemble_interop.tensorflow_serving.member import TensorFlowServing
from ensemble_models.dataset import decode
from tests.batches import batch
from tests.conftest import ROOT
from tests.server.load import Load
from tests.server.remote.peers import Peer, peer
from tests.server.server import Server, config, eventually, post, scrape

CAT = (ROOT / "tests" / "cat.jpg").read_bytes()
MEMBERS = ("resnet", "densenet")


def moved(url, edges="direct", **args):
    """The default ensemble, its ResNet and one more DenseNet elsewhere: one is separate, the other inline."""
    content = config(DEFAULT_ROOT, "separate", members=MEMBERS, edges=edges, **args)
    local, densenet = content["applications"][0]["args"]["members"]
    resnet = {"name": "resnet", "kind": "open_inference", "url": url("grpc"), "model": local["name"]}
    again = {"name": "again", "kind": "open_inference", "url": url("http"), "model": "densenet", "weight": 0}
    content["applications"][0]["args"]["members"] = [resnet, densenet, {**again, "placement": "inline"}]
    return content


@pytest.fixture(scope="module")
def expected():
    """What the members in the box say of the cat, each in this process' own graph."""
    content = config(DEFAULT_ROOT, "inline", members=MEMBERS)
    with Server(content) as server:
        # This application is a model server, too.
        asked = {
            (kind, way, model): asyncio.run(as_a_member(kind, url, model))
            for kind, model in (
                (OpenInference, "ensemble"),
                (OpenInference, "resnet"),
                (TensorFlowServing, "ensemble"),
            )
            for way, url in (("http", server.url), ("grpc", f"grpc://{server.grpc}"))
        }
        return {**post(server, CAT, members="true").json(), "asked": asked}


async def as_a_member(kind, url, model):
    """What a member gives which is a model of a server of ours: the label, its probability, and the version."""
    name = {OpenInference: "open_inference", TensorFlowServing: "tensorflow_serving"}[kind]
    member = kind(name="m", kind=name, url=url, model=model, output="probabilities")
    told = member.signature(DEFAULT_ROOT)
    # The ensemble takes the image as it was sent, a member pixels.
    assert (told.as_sent, told.classes) == (model == "ensemble", 10)
    labels = OpenVino(name="resnet").signature(DEFAULT_ROOT).labels
    wanted = AsSent() if told.as_sent else Preprocessing((32, 32))
    images = [CAT] if told.as_sent else decode("cat", CAT, [wanted])[0][None]
    answer = await member.make(DEFAULT_ROOT, MemberInterface(wanted, labels), 8)(batch(images))
    return labels[answer.payload[0].argmax()], float(answer.payload.max()), answer.items[0].versions["m"]


def test_this_application_may_be_the_other_server(expected):
    assert len(expected["asked"]) == 6
    for (_, _, model), (label, probability, version) in expected["asked"].items():
        said = expected if model == "ensemble" else expected["members"]["resnet"]
        assert (label, version) == ("cat", "1" if model == "ensemble" else "2")
        assert probability == pytest.approx(said["probability"], abs=1e-4)


def assert_the_same(answer, expected):
    assert answer["label"] == expected["label"] == "cat"
    assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-3)
    for name in MEMBERS:
        assert answer["members"][name]["probability"] == pytest.approx(
            expected["members"][name]["probability"], abs=2e-3
        )
    assert answer["members"]["again"]["probability"] == pytest.approx(
        expected["members"]["densenet"]["probability"], abs=2e-3
    )
    assert answer["model_versions"] == {"resnet": "7", "densenet": 2, "again": "7"}


def ready(server):
    return httpx.get(f"{server.url}/v2/health/ready", trust_env=False)


def addresses(server, state):
    """Whether each remote member's one address is told to be in that state, and in no other."""
    told = {(tags["member"], tags["state"]): count for tags, count in scrape(server, "ray_ensemble_remote_addresses")}
    return told == {(n, s): int(s == state) for n in ("resnet", "again") for s in ("asked", "left_alone")}


def spans(server, name):
    """The spans of that name that the server has written."""
    found = []
    for file in server.folder.glob("traces/*"):
        for line in file.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found += [span for span in scope["spans"] if span["name"] == name]
    return found


def test_a_server_that_is_down_at_the_start_comes_goes_and_comes_back(tmp_path, expected):
    elsewhere = Peer("mlserver", tmp_path, *MEMBERS)
    quorum = {"quorum": 1, "patience_ms": 3000}
    gone = {"resnet": "remote_unavailable", "again": "remote_unavailable"}
    try:
        with Server(moved(elsewhere.url, ensemble=quorum), OTEL_TRACES_EXPORTER="file") as server:
            # The DenseNet that is here is enough to be ready, and readiness says who is not.
            assert ready(server).json()["missing"] == gone
            answer = post(server, CAT).json()
            assert (answer["label"], answer["missing"]) == ("cat", gone)
            assert eventually(lambda: addresses(server, "left_alone"), 60)
            elsewhere.start()
            assert eventually(lambda: "missing" not in ready(server).json(), 60)
            assert_the_same(post(server, CAT, members="true").json(), expected)
            assert eventually(lambda: addresses(server, "asked"), 60)
            with Load(server) as load:
                elsewhere.stop()
                assert eventually(lambda: load.missing["resnet", "remote_unavailable"] > 20, 60)
                elsewhere.start()
                assert eventually(lambda: "missing" not in ready(server).json(), 60)
            assert set(load.statuses) == {200}
            assert_the_same(post(server, CAT, members="true").json(), expected)
            assert eventually(lambda: any("7" in str(span["attributes"]) for span in spans(server, "predict resnet")))
    finally:
        elsewhere.stop()


def test_by_handle_and_without_a_quorum_it_is_waited_for(tmp_path, expected):
    with peer("mlserver", tmp_path, *MEMBERS) as elsewhere, Server(moved(elsewhere.url, "handle")) as server:
        assert "missing" not in ready(server).json()
        assert_the_same(post(server, CAT, members="true").json(), expected)
        elsewhere.stop()
        answer = post(server, CAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "remote_unavailable")
        assert answer.headers["Retry-After"]

"""What people look at, on one server: the models in the box, every node separate or inline, traces in a real Jaeger."""

import httpx
import pytest
from ray import serve

from deployments.repository.repository import DEFAULT_ROOT
from tests import pictures
from tests.conftest import ROOT
from tests.networks import constant, one_hot, store
from tests.server.seen.jaeger import POSSIBLE, Jaeger
from tests.server.server import Server, config, free_ports, post

MEMBERS = ("resnet", "densenet")
SIX = [*(f"member-{letter}" for letter in "abcde"), "far"]
CAT = (ROOT / "tests" / "cat.jpg").read_bytes()


@pytest.fixture(scope="package")
def jaeger(tmp_path_factory):
    """A Jaeger; None where there is none and no Go to build it with."""
    if not POSSIBLE:
        yield None
        return
    running = Jaeger(tmp_path_factory.mktemp("jaeger") / "log").start()
    yield running
    running.kill()


@pytest.fixture(scope="package")
def recorded(tmp_path_factory):
    """The folder in which the server records what clients send."""
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="package", params=["separate", "inline"])
def server(request, jaeger, recorded):
    page, environment = {}, {}
    if jaeger is not None:
        page = {"jaeger_url": jaeger.url}
        environment = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{jaeger.otlp_grpc}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
    features = {"ensemble_capacity.recording:Recording": {"folder": str(recorded)}}
    content = config(DEFAULT_ROOT, request.param, members=MEMBERS, page=page, features=features)
    with Server(content, **environment) as running:
        yield running


@pytest.fixture(scope="package")
def handle(server):
    with server.driver():
        yield serve.get_app_handle("ensemble")


@pytest.fixture(scope="package")
def six(tmp_path_factory):
    """A server of six members, of which the last is remote and away, with every feature that is shown."""
    root = tmp_path_factory.mktemp("six")
    for number, name in enumerate(SIX[:-1]):
        store(root, name, constant(one_hot(number % 3, peak=0.5)))
    store(root, SIX[0], constant(one_hot(1, peak=0.5)), 2)
    content = config(
        root,
        "inline",
        members=SIX[:-1],
        feedback={},
        cache={},
        ensemble={"quorum": 5, "cascade": {"order": SIX, "exit_at": [0.9] * 5, "audit": 0.5}},
    )
    members = content["applications"][0]["args"]["members"]
    members[0] |= {"version": 1, "canary": {"version": 2, "share": 0.5}}
    members.append({"name": "far", "kind": "open_inference", "url": f"http://127.0.0.1:{free_ports(1)[0]}"})
    members.append({"name": "ghost", "model": SIX[1], "role": "shadow", "share": 1.0, "threads": 1})
    for member in members[-2:]:
        member["placement"] = "inline"
    with Server(content) as running:
        # A canary gets half of the images, which half no test decides; the cat is for the page, and not to be cached.
        for level in range(0, 240, 20):
            answer = post(running, pictures.encode(pictures.grey(level), ".png"), "image/png")
            told = {"request_id": answer.headers["x-request-id"], "label": answer.json()["label"]}
            assert httpx.post(f"{running.url}/feedback", json=told).status_code == 200
        yield running

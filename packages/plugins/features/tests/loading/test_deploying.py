import json
import threading
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from deployments.contract.errors import Conflict, NotFound, NotReady
from deployments.ray_internals.dashboard import APPLICATIONS
from ensemble_features.loading.deploying import deploy, fitting, redeployed
from ensemble_features.loading.feature import Change
from graph.config import parse
from graph.signature import resolve_signatures
from tests.networks import CLASSES, constant, one_hot, store


def put(root, name, version, **more):
    return store(root, name, constant(one_hot(version)), version, **more)


@pytest.fixture
def config(tmp_path):
    for name in ("apart", "inside"):
        put(tmp_path, name, 1)
    members = [{"name": "apart", "deployment": "Apart"}, {"name": "inside", "placement": "inline"}]
    arguments = {"model_repository": str(tmp_path), "members": members, "ensemble": {"quorum": 1}}
    return parse({**arguments, "access": {"operators": "anyone"}})


@pytest.fixture
def agreed(config):
    return resolve_signatures(config)


def deployed(**more):
    """What Serve tells of itself."""
    config = {
        "name": "ensemble",
        "import_path": "graph.app:build",
        "args": {"members": []},
        "deployments": [{"name": "Ingress", "num_replicas": 2, "user_config": {"max_batch_size": 8}}],
    }
    other = {"name": "other", "import_path": "x:y", "route_prefix": "/other"}
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"port": 8000},
        "grpc_options": {"port": 9000},
        "target_capacity": None,
        "proxies": {},
        "applications": {
            "ensemble": {"status": "RUNNING", "deployed_app_config": config, **more},
            "other": {"status": "RUNNING", "deployed_app_config": other},
            "of_code": {"status": "RUNNING", "deployed_app_config": None},
        },
    }


def configs(wanted):
    """The `user_config` by deployment."""
    [found] = [each for each in wanted["applications"] if each["name"] == "ensemble"]
    return {each["name"]: each.get("user_config") for each in found["deployments"]}


def test_nothing_is_changed_but_user_config(config):
    before = deployed()
    as_it_was = deepcopy(before)
    wanted = redeployed(before, "ensemble", config, Change("apart", version=2))
    assert before == as_it_was
    assert configs(wanted) == {
        "Ingress": {"max_batch_size": 8, "loading": {"unloaded": [], "loaded": {"apart": 2}}},
        "Apart": {"version": 2},
    }
    assert [each["name"] for each in wanted["applications"]] == ["ensemble", "other"]
    assert wanted["applications"][0]["args"] == {"members": []}
    assert wanted["applications"][0]["deployments"][0]["num_replicas"] == 2
    assert wanted.keys() == {"proxy_location", "http_options", "grpc_options", "applications"}


def told(before, wanted):
    """What Serve tells of itself once it has that configuration."""
    after = deepcopy(before)
    for config in wanted["applications"]:
        after["applications"][config["name"]]["deployed_app_config"] = config
    return after


def test_changes_add_up_and_the_quorum_is_kept(config):
    state = deployed()
    for change in (Change("inside", version=3), Change("apart", True)):
        state = told(state, redeployed(state, "ensemble", config, change))
    ingress = configs(redeployed(state, "ensemble", config, Change("apart", True)))["Ingress"]
    assert ingress["loading"] == {"unloaded": ["apart"], "loaded": {"inside": 3}}
    assert ingress["nodes"] == {"inside": {"version": 3}}
    with pytest.raises(Conflict, match="'inside' can't be unloaded: the quorum needs it"):
        redeployed(state, "ensemble", config, Change("inside", True))
    back = configs(redeployed(state, "ensemble", config, Change("apart", version=1)))
    assert back["Ingress"]["loading"] == {"unloaded": [], "loaded": {"inside": 3, "apart": 1}}
    assert back["Apart"] == {"version": 1}


def test_an_application_of_code_is_refused(config):
    with pytest.raises(Conflict, match="deployed by Python code"):
        redeployed(deployed(deployed_app_config=None), "ensemble", config, Change("apart", True))


def test_the_highest_version_or_the_one_that_is_named(config, agreed, tmp_path):
    put(tmp_path, "apart", 3)
    put(tmp_path, "apart", 2)
    assert fitting(config, agreed, Change("apart")) == 3
    assert fitting(config, agreed, Change("apart", version=2)) == 2
    assert fitting(config, agreed, Change("inside")) == 1
    with pytest.raises(NotFound, match=r"'apart' has no version 7; there are \[1, 2, 3\]"):
        fitting(config, agreed, Change("apart", version=7))


@pytest.mark.parametrize(
    ("network", "more", "told"),
    [
        (constant([0.5, 0.5]), {"classes": ("x", "y")}, "classes"),
        (constant(one_hot(2)), {"input": {"resize": "stretch"}}, "cropped, resized or filled differently"),
    ],
)
def test_a_version_that_does_not_fit_is_refused(config, agreed, tmp_path, network, more, told):
    store(tmp_path, "apart", network, 2, **more)
    with pytest.raises(Conflict, match=f"version that is the highest of member 'apart' is refused, .*{told}"):
        fitting(config, agreed, Change("apart"))


def test_a_version_that_does_not_run_is_refused(config, agreed, tmp_path):
    # It takes images of any size, until it sees one that has not 64 times 64 pixels.
    image = op.parameter([-1, -1, -1, 3], np.uint8)
    flat = op.reshape(op.convert(image, "f32"), np.array([0, -1]), True)
    scores = op.matmul(flat, np.zeros((64 * 64 * 3, len(CLASSES)), np.float32), False, False)
    store(tmp_path, "apart", ov.Model([op.softmax(scores, 1)], [image], "m"), 2)
    with pytest.raises(Conflict, match="does not run on pixels"):
        fitting(config, agreed, Change("apart"))


def test_a_torn_version_is_refused(config, agreed, tmp_path):
    (put(tmp_path, "apart", 2) / "model.bin").write_bytes(b"torn")
    with pytest.raises(Conflict, match=r"version 2 of member 'apart' is refused, .*SHA-256"):
        fitting(config, agreed, Change("apart", version=2))


@contextmanager
def dashboard(details, status=200):
    """Serve's REST interface on a port of its own; yields its address and what was deployed."""
    taken = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == APPLICATIONS
            self._answer(200, json.dumps(details).encode())

        def do_PUT(self):
            taken.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._answer(status, b"")

        def _answer(self, status, body):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", taken
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """A token of Ray's, which a machine that has never served has no file of."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")


def test_it_is_deployed_once(config):
    state, change = deployed(), Change("apart", version=2)
    wanted = redeployed(state, "ensemble", config, change)
    with dashboard(state) as (address, taken):
        deploy(address, "ensemble", config, change)
        assert taken == [wanted]
    with dashboard(told(state, wanted)) as (address, taken):
        deploy(address, "ensemble", config, change)
        assert not taken


def test_what_serve_does_not_take_now_can_be_tried_again(config, monkeypatch):
    monkeypatch.setattr("ensemble_features.loading.deploying.TIMEOUT_S", 0.1)
    change = Change("apart", version=2)
    with (
        dashboard(deployed(), 500) as (address, _),
        pytest.raises(NotReady, match="does not take the change now; try again"),
    ):
        deploy(address, "ensemble", config, change)
    with pytest.raises(NotReady, match="does not take the change now; try again"):
        deploy(address, "ensemble", config, change)
    with dashboard(deployed(status="DEPLOYING")) as (address, taken):
        with pytest.raises(NotReady, match="the application is DEPLOYING; try again when it is RUNNING"):
            deploy(address, "ensemble", config, change)
        assert not taken
    # While it is deleted, or Serve starts again.
    for gone in ({**deployed(), "applications": {}}, {"proxies": {}}):
        with dashboard(gone) as (address, _), pytest.raises(NotReady, match="the application is NOT_STARTED"):
            deploy(address, "ensemble", config, change)
    with pytest.raises(NotReady):
        deploy("http://", "ensemble", config, change)

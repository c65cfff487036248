import base64
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest

from deployments.repository.repository import DEFAULT_ROOT, find
from ensemble_models.dataset import Dataset
from ensemble_models.prediction import predict
from lab.benchmark import peer as peer_file
from lab.benchmark import systems, workloads
from lab.benchmark.peer import PEERS, Posted, grpc_form
from lab.benchmark.systems import System, named
from lab.benchmark.workloads import Workload, thresholds
from scripts.errors import ScriptError
from tests.conftest import ROOT
from tests.networks import brightness, store


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """What pip is asked to install, without installing it."""
    asked = []

    def run(command):
        asked.append(command[command.index("--quiet") + 1 :])
        return subprocess.CompletedProcess(command, installed_rc[0])

    installed_rc = [0]
    asked_of = type("Installed", (), {"asked": asked, "rc": installed_rc})
    monkeypatch.setattr(peer_file, "CACHE", tmp_path)
    monkeypatch.setattr(peer_file.subprocess, "run", run)
    monkeypatch.setattr(peer_file.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True))
    return asked_of


@pytest.fixture
def declare(monkeypatch):
    """Declare one peer, as peers.yaml does."""
    return lambda **declared: monkeypatch.setitem(peer_file.DECLARED, "peer", declared)


def test_the_form_of_a_peers_request_is_declared(declare):
    form = {"path": "/v2", "headers": {"a": "b"}, "body": '["BASE64"]'}
    declare(**form, grpc=True, shape=[1, 1], variants={"callable": ["--callable"]})
    plain = System(
        "peer",
        None,
        {"http": Posted("/v2", (("a", "b"),), '["BASE64"]'), "grpc": grpc_form((1, 1))},
        str(PEERS / "peer.py"),
    )
    assert named(["peer", "peer-callable"]) == [plain, replace(plain, name="peer-callable", arguments=("--callable",))]
    assert plain.forms["grpc"].inputs[0].shape == (-1, 1)
    declare()
    [plain] = named(["peer"])
    assert plain.forms == {"http": Posted()}


def test_every_peer_is_well_declared():
    names = sorted(path.stem for path in PEERS.glob("*.py"))
    assert {"mlserver", "torchserve", "triton"} < set(names)
    assert [system.name for system in named(names)] == names == sorted(peer_file.DECLARED)


def test_a_peer_has_our_builds_but_for_the_versions_it_asks_for(installed, declare):
    declare(dependencies=["openvino", "numpy<2", "another"])
    for _ in range(2):
        peer_file.python_of("peer")
    # The second time it is there.
    assert installed.asked == [[f"openvino=={importlib.metadata.version('openvino')}", "numpy<2", "another"]]


def test_a_peer_that_can_not_be_installed_is_told(installed, declare):
    installed.rc[0] = 1
    declare(dependencies=["openvino"])
    with pytest.raises(ScriptError, match="peer could not be installed"):
        peer_file.python_of("peer")


def test_a_peer_without_dependencies_runs_here():
    assert peer_file.python_of("chain") == sys.executable


def test_what_makes_the_ensemble_cheap_is_measured_beside_it(monkeypatch, tmp_path):
    variants = named(["colocated", "cascade", "student", "cached"])
    assert [system.placement for system in variants] == ["colocated"] * 4
    monkeypatch.setattr(workloads, "CACHE", tmp_path)
    (tmp_path / "a.jpg").write_bytes((ROOT / "tests" / "cat.jpg").read_bytes())
    load = Workload("embedded", DEFAULT_ROOT, 2, (tmp_path / "a.jpg",), None)
    plain, cascade, student, cached = (
        load.config("colocated", 1, 2, ROOT / file if file else None)["applications"][0]["args"]
        for file in (variants[0].file, load.cascade, *(system.file for system in variants[2:]))
    )
    assert cascade.pop("ensemble")["cascade"]["exit_at"] == [0.9295]
    assert cached.pop("cache")["ttl_s"] == 600
    assert cascade["members"][1].pop("least_at_once") == 4
    assert student.pop("ensemble")["cascade"]["order"] == ["student", "resnet", "densenet"]
    assert (student["members"][0]["name"], student["members"].pop(0)["weight"]) == ("student", 0)
    assert student["members"][1].pop("least_at_once") == 4
    assert student.pop("ingress") == {"max_batch_size": 64}
    # Nothing else differs.
    ensemble = plain.pop("ensemble")
    assert cached.pop("ensemble") == ensemble
    assert plain == cascade == student == cached


def test_the_threshold_stops_the_share_that_is_wanted(tmp_path):
    for number in range(8):
        level = np.full((32, 32, 3), 24 + number, np.uint8)
        cv2.imwrite(str(tmp_path / f"{number}.png"), level)
    photographs = Dataset(tmp_path, tuple(f"{number}.png" for number in range(8)))
    for name in ("first", "second", "third"):
        store(tmp_path / "models", name, brightness())
    models = [find(tmp_path / "models", name) for name in ("first", "second", "third")]
    weights = {model.name: 1.0 for model in models}
    [scores] = predict(models[:1], photographs)
    [at] = thresholds(models[:2], weights, photographs, [0.75])
    assert (scores.max(axis=1) >= at).sum() == 6
    # All say the same, so that the second stage is as sure as the first.
    high, low = thresholds(models, weights, photographs, [0.5, 0.25])
    assert (scores.max(axis=1) >= high).sum() == 4
    assert (scores.max(axis=1) >= low).sum() == 6
    with pytest.raises(ScriptError, match="no threshold stops"):
        thresholds(models[:2], weights, photographs, [1.0])
    with pytest.raises(ScriptError, match="wants 2 shares"):
        thresholds(models, weights, photographs, [0.5])


def test_a_peer_runs_without_our_switches(monkeypatch):
    monkeypatch.setenv("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
    monkeypatch.setenv("ANOTHER", "1")
    [chain] = named(["chain"])
    assert "RAY_SERVE_THROUGHPUT_OPTIMIZED" not in systems._inherited(chain)
    assert systems._inherited(chain)["ANOTHER"] == "1"
    assert systems._inherited(systems.OURS["colocated"])["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"


@pytest.fixture
def three(tmp_path):
    """A workload of three models, two of another size than the first."""
    names = ("small", "large", "last")
    for name, size in zip(names, (32, 48, 48), strict=True):
        store(tmp_path / "models", name, brightness(size=size))
    return Workload("three", tmp_path / "models", 1, (), None, members=names)


@pytest.mark.parametrize("file", [None, "configs/throughput.yaml", "configs/cached.yaml"])
@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_other_models_are_served_in_each_form(three, placement, file):
    config = three.config(placement, 1, 2, ROOT / file if file else None)
    [application] = config["applications"]
    assert [member["name"] for member in application["args"]["members"]] == ["small", "large", "last"]
    deployed = [each["name"] for each in application["deployments"]]
    own = [member["deployment"] for member in application["args"]["members"] if "deployment" in member]
    assert own == (["Member0", "Member1", "Member2"] if placement == "separate" and not file else [])
    assert len(set(deployed)) == len(deployed)
    assert set(own) <= set(deployed)
    assert not {"ResNet", "DenseNet"} & set(deployed)


def test_a_configuration_of_other_models_is_refused(three):
    with pytest.raises(ScriptError, match="'three' has no models for this system; leave it out by --systems"):
        three.config("colocated", 1, 2, ROOT / "configs" / "student.yaml")


def test_a_peer_of_one_size_can_not_serve_models_of_several(three):
    mlserver, triton = named(["mlserver", "triton"])
    assert not systems.can_serve(mlserver, three)
    assert systems.can_serve(triton, three)
    assert systems.can_serve(systems.OURS["separate"], three)
    with pytest.raises(ScriptError, match="mlserver serves models of one size only"):
        systems._peer(mlserver, three)


def test_the_photographs_are_as_they_are_served():
    config = Workload("photographs", ROOT, 1, (), None, members=workloads.PHOTOGRAPHS)
    args = config.config("colocated", 1, 2, ROOT / "configs" / "photographs.yaml")["applications"][0]["args"]
    assert [member["name"] for member in args["members"]] == list(workloads.PHOTOGRAPHS)
    assert args["ensemble"]["cascade"]["order"] == list(workloads.PHOTOGRAPHS)


def test_photographs_of_12_megapixels_are_made(monkeypatch, tmp_path):
    monkeypatch.setattr(workloads, "CACHE", tmp_path)
    monkeypatch.setattr(workloads, "MOST_ORIGINALS", 1)
    [path] = workloads.photographs("12mp")
    assert cv2.imread(str(path)).shape == (3000, 4000, 3)


def test_an_image_may_be_sent_within_a_text():
    request = Posted("/predict", (("content-type", "application/json"),), '{"a": "BASE64"}').request([b"image"])
    assert json.loads(request.body) == {"a": base64.b64encode(b"image").decode()}
    assert request.headers == (("content-type", "application/json"),)

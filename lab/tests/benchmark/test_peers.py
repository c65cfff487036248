"""The part of every peer's program: the members on OpenVINO."""

import importlib

import cv2
import numpy as np
import pytest

from deployments.repository.repository import find
from ensemble_models.dataset import Dataset
from ensemble_models.prediction import predict
from lab.benchmark.peer import SHARED_CODE
from tests.networks import brightness, store


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.syspath_prepend(str(SHARED_CODE))
    return importlib.import_module("ensemble_peer")


def test_a_peer_answers_as_the_members_do(shared, tmp_path):
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((64, 64, 3), 90, np.uint8))
    for name, size in (("small", 32), ("large", 48)):
        store(tmp_path / "models", name, brightness(size=size))
    models = [find(tmp_path / "models", name) for name in ("small", "large")]
    expected = np.mean(predict(models, Dataset(tmp_path, ("grey.png",))), axis=0)
    image = shared.decode((tmp_path / "grey.png").read_bytes())
    members = shared.Members([str(model.path) for model in models], shared.hints("f32"))
    pixels = [shared.resize(image, (size, size))[None] for size in (32, 48)]
    # The members' scores are no probabilities, which these models leave to the server.
    assert members(*pixels).argmax() == expected.argmax()
    with pytest.raises(ValueError, match="not an image"):
        shared.decode(b"text")


def test_a_peer_takes_the_arguments_of_the_benchmark(shared):
    command = ["--port", "1", "--grpc-port", "2", "--size", "32", "48", "--precision-hint", "", "a.xml", "b.xml"]
    args = shared.parser().parse_args(command)
    assert (args.port, args.grpc_port, args.size, args.models) == (1, 2, [32, 48], ["a.xml", "b.xml"])
    assert "INFERENCE_PRECISION_HINT" not in shared.hints(args.precision_hint)

"""`ensemble prepare` on a small classifier as each framework itself wrote it; `make.py` has the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_models.prepare import __main__ as prepare
from packages.models.tests.formats.make import FILTERS, HERE, MATRIX
from packages.models.tests.tiny import call

MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])


def expected(rgb: np.ndarray) -> np.ndarray:
    """What the classifier answers to images that are normalized by ImageNet's mean and standard deviation."""
    windows = np.lib.stride_tricks.sliding_window_view((rgb / 255 - MEAN) / STD, (3, 3), axis=(1, 2))[:, ::2, ::2]
    features = np.maximum(np.einsum("nyxcij,ijco->nyxo", windows, FILTERS), 0)
    powers = np.exp(features.mean((1, 2)) @ MATRIX)
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("source", "precision", "tolerance"),
    [
        ("saved_model", "FP32", 1e-5),
        ("keras_model", "FP32", 1e-5),
        ("classifier.tflite", "FP32", 1e-5),
        ("int8.tflite", "INT8", 0.05),
        ("inference.pdmodel", "FP32", 1e-5),
    ],
)
def test_a_framework_s_model_becomes_a_member(source: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    flags = ["--channel-order", "RGB", "--normalize", "imagenet"]
    arguments = [str(HERE / source), "--name", "m", "--repository", str(tmp_path), "--precision", "FP32", *flags]
    call(prepare.main, *arguments)
    check(tmp_path, precision, tolerance)


def check(tmp_path: Path, precision: str, tolerance: float) -> None:
    """It answers as it should, and looks at the image."""
    model = find(tmp_path, "m")
    assert model.metadata["precision"] == precision
    network = load(model)
    assert network.input(0).get_partial_shape() == ov.PartialShape([-1, 8, 8, 3])
    rgb = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    answers = ov.Core().compile_model(network, "CPU", options)(np.ascontiguousarray(rgb[..., ::-1]))[0]
    np.testing.assert_allclose(answers, expected(rgb), atol=tolerance)
    np.testing.assert_allclose(answers.sum(1), 1, atol=1e-5)
    assert np.ptp(expected(rgb), 0).max() > 0.3  # it looks at the image


def test_paddle_s_newer_format_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_text('{"base_code": {}, "program": {}}')
    arguments = [str(tmp_path / "inference.json"), "--name", "m", "--repository", str(tmp_path)]
    with pytest.raises(ModelError, match="FLAGS_enable_pir_api=0"):
        call(prepare.main, *arguments)

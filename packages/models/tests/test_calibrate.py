from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from deployments.repository.errors import ModelError
from deployments.repository.repository import find, sha256, versions
from ensemble_models import calibrate as command
from ensemble_models import int8, quantize
from ensemble_models.baking import TEMPERATURE
from ensemble_models.calibrate import calibrate, check_same
from ensemble_models.dataset import Dataset, sample
from ensemble_models.learnt import check_unseen, images_left_out
from ensemble_models.prediction import predict
from ensemble_models.quantize import Quantization
from packages.models.tests.tiny import LABELS, SIZE, add, constant
from scripts.errors import ScriptError

TRUE = 4.0
CENTRES = np.array([[40, 120, 200]], np.float32)


def logits(brightness: float) -> np.ndarray:
    return -np.abs(brightness - CENTRES) / 8


def brightness(softmax: bool = True) -> ov.Model:
    """A classifier by the brightness of the image, four times as sure as it is right."""
    image = opset13.parameter([-1, *SIZE, 3], ov.Type.u8)
    mean = opset13.reduce_mean(opset13.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
    distance = opset13.abs(opset13.subtract(opset13.unsqueeze(mean, np.array([1])), CENTRES))
    scores = opset13.multiply(distance, np.float32(-1 / 8))
    return ov.Model([opset13.softmax(scores, 1) if softmax else scores], [image])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey images, with labels that are as probable as the classifier's logits say at the true temperature."""
    file, random = tmp_path_factory.mktemp("data") / "grey.zip", np.random.default_rng(0)
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(1600):
            grey = int(random.integers(0, 256))
            raised = np.exp(logits(grey)[0] / TRUE)
            label = random.choice(LABELS, p=raised / raised.sum())
            archive.writestr(
                f"{label}/{number}.png", cv2.imencode(".png", np.full((*SIZE, 3), grey, np.uint8))[1].tobytes()
            )
    return file


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrate", *map(str, arguments)])
    command.main()


@pytest.mark.parametrize("softmax", [True, False])
def test_the_true_temperature_is_put_into_the_next_version(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], softmax: bool
) -> None:
    add(tmp_path, "m", brightness(softmax), "FP32", source={"tool": "elsewhere"})
    run(monkeypatch, "m", "--data", data, "--repository", tmp_path)
    said = capsys.readouterr().out
    assert "do not show whether it was trained on these images" in said
    assert versions(tmp_path, "m") == [1, 2]
    own, calibrated = find(tmp_path, "m", 1), find(tmp_path, "m")
    found = calibrated.metadata["calibration"]
    assert found["temperature"] == pytest.approx(TRUE, rel=0.1)
    assert (found["version"], found["data"], found["part"], found["images"]) == (1, "grey.zip", "all", 1600)
    assert found["sha256"] == sha256(data)
    assert found["before"]["ece"] > 10
    assert found["after"]["ece"] < 5
    assert found["after"]["log_loss"] < found["before"]["log_loss"]
    assert found["after"]["top1"] == found["before"]["top1"]
    assert f"temperature {found['temperature']}" in said
    kept = {"name", "precision", "classes", "input", "source"}
    assert {key: calibrated.metadata[key] for key in kept} == {key: own.metadata[key] for key in kept}
    # What is served is softmax(log(p) / temperature).
    before, after = predict([own, calibrated], Dataset.open(data))
    raised = before.astype(np.float64) ** (1 / found["temperature"])
    assert after == pytest.approx(raised / raised.sum(axis=1, keepdims=True), abs=1e-3)
    with pytest.raises(SystemExit, match="version 2 of 'm' is calibrated already, with the temperature"):
        run(monkeypatch, "m", "--data", data, "--repository", tmp_path)


def test_a_version_is_replaced_if_that_is_asked_for(tmp_path: Path, data: Path) -> None:
    add(tmp_path, "m", brightness(), "FP16")
    folder = calibrate(tmp_path, "m", None, data, hold_out=600, replace=True)
    assert [entry.name for entry in (tmp_path / "m").iterdir()] == ["1"]
    found = find(tmp_path, "m")
    found.verify()
    assert found.folder == folder
    assert found.metadata["calibration"]["part"] == "the 600 held out"
    assert found.metadata["precision"] == "FP16"


def test_a_calibrated_model_is_quantized_without_its_temperature(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, "m", brightness(), "FP32")
    calibrate(tmp_path, "m", None, data)
    given: list[str] = []

    def to_int8(network: ov.Model, *_: object) -> ov.Model:
        given.extend(node.get_friendly_name() for node in network.get_ordered_ops())
        return brightness()

    monkeypatch.setattr(int8, "to_int8", to_int8)
    # Of equal models either may seem the slower one.
    monkeypatch.setattr(quantize, "slower_than", lambda *_: "")
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    quantize.quantize(tmp_path, "m", None, Quantization(data, samples=2))
    assert given
    assert TEMPERATURE not in given
    assert "calibration" not in find(tmp_path, "m", 3).metadata


def trained(data: Path, left_out: int, initial: int | None = None) -> dict[str, object]:
    begun = None if initial is None else {"recipe": {"hold_out": initial}, "initial": None}
    source = {"tool": "scripts.train", "recipe": {"hold_out": left_out}, "initial": begun, "sha256": sha256(data)}
    return {"source": source}


@pytest.mark.parametrize(
    ("left_out", "initial", "hold_out", "hint"),
    [
        (600, None, 600, None),
        (1000, 600, 500, None),
        (600, None, 0, "name --hold-out 600"),
        (600, None, 601, "name --hold-out 600"),
        (1000, 0, 500, "name other images"),
        (0, None, 500, "name other images"),
    ],
)
def test_images_that_the_float_model_has_learnt_are_refused(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    left_out: int,
    initial: int,
    hold_out: int,
    hint: str,
) -> None:
    add(tmp_path, "m", brightness(), "FP16", **trained(data, left_out, initial))
    add(tmp_path, "m", brightness(), "INT8", source={"tool": "scripts.quantize", "version": 1})
    if hint:
        with pytest.raises(ScriptError, match=f"has learnt some of these {hold_out or 1600} images.*{hint}"):
            calibrate(tmp_path, "m", None, data, hold_out)
        assert versions(tmp_path, "m") == [1, 2]
    else:
        assert calibrate(tmp_path, "m", None, data, hold_out).name == "3"
        assert "do not show" not in capsys.readouterr().out


def test_few_of_the_images_may_be_learnt_ones(tmp_path: Path, data: Path) -> None:
    add(tmp_path, "m", brightness(), "FP16", **trained(data, 600))
    every = Dataset.open(data)
    left_out = every.hold_out(600)[1]
    assert left_out is not None
    check_unseen(find(tmp_path, "m"), sample(left_out, 500))
    with pytest.raises(ScriptError, match="has learnt some of these 500 images"):
        check_unseen(find(tmp_path, "m"), sample(every, 500))


@pytest.mark.parametrize(("own", "begun", "left_out"), [("a", "b", 600), ("b", "a", 0), ("b", "c", None)])
def test_of_the_runs_that_a_model_comes_from_those_with_these_images_count(
    tmp_path: Path, data: Path, own: str, begun: str, left_out: int | None
) -> None:
    digests = {"a": sha256(data), "b": "b" * 64, "c": "c" * 64}
    initial = {"recipe": {"hold_out": 0}, "data_sha256": digests[begun], "initial": None}
    source = {"tool": "scripts.train", "recipe": {"hold_out": 600}, "sha256": digests[own], "initial": initial}
    add(tmp_path, "m", brightness(), "FP16", source=source)
    assert images_left_out(find(tmp_path, "m"), Dataset.open(data)) == left_out


def test_a_source_that_is_a_text_says_nothing_of_training(tmp_path: Path, data: Path) -> None:
    add(tmp_path, "m", brightness(), "FP16", source="https://example.com/m")
    assert images_left_out(find(tmp_path, "m"), Dataset.open(data)) is None


def test_without_the_float_version_it_is_unknown_what_was_learnt(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path, "m", brightness(), "INT8", source={"tool": "scripts.quantize", "version": 9})
    calibrate(tmp_path, "m", None, data)
    assert "do not show whether" in capsys.readouterr().out


def test_few_images_and_images_of_other_classes_are_refused(tmp_path: Path, data: Path) -> None:
    add(tmp_path, "m", brightness(), "FP16")
    with pytest.raises(ScriptError, match="499 images are too few"):
        calibrate(tmp_path, "m", None, data, hold_out=499)
    add(tmp_path, "n", brightness(), "FP16", labels=["bird", "cat", "horse"])
    with pytest.raises(ScriptError, match="has the class 'dog', which is none of the 3 classes"):
        calibrate(tmp_path, "n", None, data)


def test_a_model_of_another_format_is_not_replaced(tmp_path: Path, data: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "m" / "1" / "metadata.json").write_text(json.dumps({"classes": LABELS}))
    with pytest.raises(ModelError, match=r"model\.onnx would be lost.*omit --replace"):
        calibrate(tmp_path, "m", None, data, replace=True)


def test_a_model_whose_answers_would_change_is_not_written(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, "m", brightness(), "FP16")
    monkeypatch.setattr(command, "with_temperature", lambda *_: constant([0.2, 0.5, 0.3]))
    with pytest.raises(ModelError, match=r"changes \d+ answers, so nothing was written"):
        calibrate(tmp_path, "m", None, data)
    assert [entry.name for entry in (tmp_path / "m").iterdir()] == ["1"]


def test_answers_may_only_differ_where_two_classes_are_as_probable() -> None:
    before = np.array([[0.5, 0.49, 0.01], [0.9, 0.1, 0]], np.float32)
    check_same(before, before)
    check_same(before, np.array([[0.3, 0.4, 0.3], [0.9, 0.1, 0]], np.float32))
    with pytest.raises(ModelError, match="changes 1 answers"):
        check_same(before, np.array([[0.5, 0.4, 0.1], [0.4, 0.6, 0]], np.float32))


@pytest.mark.parametrize(
    ("source", "left_out"),
    # As it is written now, and before; the last one leads to itself.
    [({"model": "m", "version": 1}, 600), ({"version": 1}, 600), ({"model": "m-int8", "version": 1}, None)],
)
def test_a_model_of_its_own_is_traced_to_the_float_one(
    tmp_path: Path, data: Path, source: dict[str, object], left_out: int | None
) -> None:
    trained = {"tool": "scripts.train", "recipe": {"hold_out": 600}, "sha256": sha256(data)}
    add(tmp_path, "m", brightness(), "FP16", source=trained)
    add(tmp_path, "m-int8", brightness(), "INT8", source={"tool": "scripts.quantize", **source})
    assert images_left_out(find(tmp_path, "m-int8"), Dataset.open(data)) == left_out

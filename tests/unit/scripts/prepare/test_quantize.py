from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest

from deployments.repository.baking import bake
from deployments.repository.errors import ModelError
from deployments.repository.repository import Model, find, versions
from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import predict
from scripts.prepare import quantize
from scripts.prepare.quantize import BiasCorrection, Quantization
from tests.unit.scripts.tiny import LABELS, SIZE, Draw, add, constant, convolutions

COUNTS = {"bird": 2, "cat": 5, "dog": 3}


def baked() -> ov.Model:
    imagenet = {"mean": [123.7, 116.3, 103.5], "scale": [58.4, 57.1, 57.4]}
    return bake(convolutions(), size=SIZE, channel_order="RGB", layout="NCHW", **imagenet)


def replace_nncf(monkeypatch: pytest.MonkeyPatch, quantized: ov.Model) -> None:
    monkeypatch.setattr(quantize, "_to_int8", lambda *_: (quantized, "0"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("precision", "largest", "bias_correction"),
    [("FP16", 0.55, "fast"), ("FP32", 0.30, "fast"), ("FP16", 0.55, "accurate")],
)
def test_int8_is_smaller_and_answers_alike(
    tmp_path: Path,
    draw: Draw,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    largest: float,
    bias_correction: BiasCorrection,
) -> None:
    nncf = pytest.importorskip("nncf")
    asked = Mock(wraps=nncf.quantize)
    monkeypatch.setattr(nncf, "quantize", asked)
    data = draw({"bird": 12, "cat": 12, "dog": 12})
    add(tmp_path, "m", baked(), precision)
    settings = Quantization(data, samples=8, max_drop=50, bias_correction=bias_correction)
    folder = quantize.quantize(tmp_path, "m", None, settings)
    assert asked.call_args.kwargs["fast_bias_correction"] == (bias_correction == "fast")
    source, int8 = find(tmp_path, "m", 1), find(tmp_path, "m")
    assert folder == int8.folder
    assert int8.metadata["precision"] == "INT8"
    assert int8.metadata["source"]["version"] == 1
    assert int8.metadata["source"]["samples"] == 8
    assert int8.metadata["source"]["bias_correction"] == bias_correction
    assert len(int8.metadata["source"]["sha256"]) == 64
    # The eight that calibrated are not among those that measured.
    assert int8.metadata["accuracy"]["images"] == 28
    assert quantize.weight_bytes(int8) <= largest * quantize.weight_bytes(source)
    before, after = predict([source, int8], Dataset.open(data))
    assert 0 < np.abs(before - after).max() < 0.1
    # What differs from image to image, differs likewise.
    assert np.corrcoef((before - before.mean(0)).ravel(), (after - after.mean(0)).ravel())[0, 1] > 0.9


def test_weights_beside_the_model_count(tmp_path: Path) -> None:
    """PaddlePaddle's, and those of ONNX with external data."""
    for name, size in (
        ("classifier.onnx", 10),
        ("classifier.onnx.data", 1000),
        ("labels.txt", 7),
        ("metadata.json", 7),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    assert quantize.weight_bytes(Model("m", 1, tmp_path / "classifier.onnx", {})) == 1010


def test_what_did_not_shrink_is_refused(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "m", baked(), "FP16")
    replace_nncf(monkeypatch, baked())
    with pytest.raises(ModelError, match="most layers were not quantized"):
        quantize.quantize(tmp_path, "m", None, Quantization(draw(COUNTS), samples=2))
    assert versions(tmp_path, "m") == [1]
    assert len(list((tmp_path / "m").iterdir())) == 1


@pytest.mark.parametrize(("allowed", "written"), [(29.9, False), (30.0, True)])
def test_more_top1_than_allowed_is_not_lost(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, allowed: float, written: bool
) -> None:
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([1, 0, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw(COUNTS)
    settings = Quantization(data, samples=1, validation=data, max_drop=allowed)
    if written:
        folder = quantize.quantize(tmp_path, "m", None, settings)
        accuracy = find(tmp_path, "m", int(folder.name)).metadata["accuracy"]
        assert (accuracy["source_top1"], accuracy["top1"], accuracy["images"]) == (50.0, 20.0, 10)
    else:
        with pytest.raises(ModelError, match=r"loses 30\.00 points"):
            quantize.quantize(tmp_path, "m", None, settings)
    assert versions(tmp_path, "m") == ([1, 2] if written else [1])


def test_an_int8_version_is_not_quantized_again(tmp_path: Path, draw: Draw) -> None:
    add(tmp_path, "m", constant([1, 0, 0]), "INT8")
    with pytest.raises(ModelError, match="is int8 already"):
        quantize.quantize(tmp_path, "m", None, Quantization(draw(COUNTS)))


@pytest.mark.parametrize(("compress", "precision"), [(True, "FP16"), (False, "FP32")])
def test_without_metadata_the_weights_tell_their_precision(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, compress: bool, precision: str
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    ov.save_model(baked(), tmp_path / "m" / "1" / "model.xml", compress_to_fp16=compress)
    replace_nncf(monkeypatch, baked())
    with pytest.raises(ModelError, match=f"of the {precision} ones"):
        quantize.quantize(tmp_path, "m", None, Quantization(draw({"photos": 2}), samples=2))


def test_strange_validation_images_are_refused(tmp_path: Path, draw: Draw) -> None:
    add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    strange = draw({"horse": 1}, name="strange.zip")
    with pytest.raises(ScriptError, match="the class 'horse'"):
        quantize.quantize(tmp_path, "m", None, Quantization(draw(COUNTS), validation=strange))


@pytest.mark.parametrize(("allowed", "written"), [(19, False), (21, True)])
def test_without_labels_the_float_model_s_answers_are_compared_with(
    tmp_path: Path,
    draw: Draw,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    allowed: float,
    written: bool,
) -> None:
    """All answers differ, and by the float model's own probabilities each of them costs 20 points."""
    add(tmp_path, "m", constant([0.5, 0.3, 0.2]), "FP16", labels=LABELS)
    replace_nncf(monkeypatch, constant([0.4, 0.6, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    settings = Quantization(draw({"photos": 6}), max_drop=allowed)
    if not written:
        with pytest.raises(ModelError, match=r"loses 20\.00 points"):
            quantize.quantize(tmp_path, "m", None, settings)
        assert versions(tmp_path, "m") == [1]
        return
    quantize.quantize(tmp_path, "m", None, settings)
    accuracy = find(tmp_path, "m", 2).metadata["accuracy"]
    assert (accuracy["agreement"], round(accuracy["expected_drop"], 1), accuracy["images"]) == (0, 20, 3)
    assert "has the class 'photos'" in capsys.readouterr().out


def test_few_images_are_shared_between_calibrating_and_measuring(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than --samples: all of them calibrated, and a version that nobody had measured was served next."""
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([1, 0, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw({"bird": 10, "cat": 50})
    with pytest.raises(ModelError, match="nothing was written"):
        quantize.quantize(tmp_path, "m", None, Quantization(data))
    assert versions(tmp_path, "m") == [1]
    quantize.quantize(tmp_path, "m", None, Quantization(data, max_drop=100))
    metadata = find(tmp_path, "m", 2).metadata
    assert (metadata["source"]["samples"], metadata["accuracy"]["images"]) == (30, 30)


def test_an_unmeasured_version_is_asked_for(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    replace_nncf(monkeypatch, constant([0, 1, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw({"bird": 1})
    with pytest.raises(ScriptError, match="--unmeasured"):
        quantize.quantize(tmp_path, "m", None, Quantization(data))
    quantize.quantize(tmp_path, "m", None, Quantization(data, unmeasured=True))
    assert "accuracy" not in find(tmp_path, "m", 2).metadata

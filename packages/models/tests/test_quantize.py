from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest

from deployments.contract.payload import Pixels
from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import Model, find, versions
from ensemble_models import int8, quantize
from ensemble_models.baking import bake
from ensemble_models.dataset import Dataset, decode_all, sample
from ensemble_models.prediction import predict, preprocessing
from ensemble_models.quantize import Quantization
from packages.models.tests.tiny import LABELS, SIZE, Draw, add, constant, convolutions
from scripts.errors import ScriptError

COUNTS = {"bird": 2, "cat": 5, "dog": 3}


def baked() -> ov.Model:
    imagenet = {"mean": [123.7, 116.3, 103.5], "scale": [58.4, 57.1, 57.4]}
    return bake(convolutions(), size=SIZE, channel_order="RGB", layout="NCHW", **imagenet)


def replace_nncf(monkeypatch: pytest.MonkeyPatch, quantized: ov.Model) -> None:
    monkeypatch.setattr(int8, "to_int8", lambda *_: quantized)


def pixels_of(repository: Path, data: Path) -> Pixels:
    some = sample(Dataset.open(data), 8)
    return decode_all(some.names, [encoded for encoded, _ in some.read()], preprocessing(find(repository, "m", 1)))


def cost_ms(monkeypatch: pytest.MonkeyPatch, before: float, after: float) -> None:
    """What versions cost depends on the machine, and for models as tiny as these on chance."""
    monkeypatch.setattr(quantize, "cpu_ms", lambda _models: [before, after])


@pytest.fixture(autouse=True)
def equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    cost_ms(monkeypatch, 1, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("precision", "largest", "max_drop", "ways"), [("FP16", 0.55, 50, 2), ("FP32", 0.30, 50, 2), ("FP16", 0.55, -1, 4)]
)
def test_int8_is_smaller_and_answers_alike(
    tmp_path: Path,
    draw: Draw,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    largest: float,
    max_drop: float,
    ways: int,
) -> None:
    """Both presets are tried, and layers stay float only where too much would be lost."""
    nncf = pytest.importorskip("nncf")
    asked = Mock(wraps=nncf.quantize)
    monkeypatch.setattr(nncf, "quantize", asked)
    data = draw({"bird": 12, "cat": 12, "dog": 12})
    add(tmp_path, "m", baked(), precision)
    found = int8.search(lambda: load(find(tmp_path, "m", 1)), pixels_of(tmp_path, data), max_drop)
    assert asked.call_count == ways
    monkeypatch.setattr(quantize, "search", lambda *_: found)
    folder = quantize.quantize(tmp_path, "m", None, Quantization(data, samples=8, max_drop=50))
    source, written = find(tmp_path, "m", 1), find(tmp_path, "m")
    assert folder == written.folder
    assert written.metadata["precision"] == "INT8"
    assert written.metadata["source"]["version"] == 1
    assert written.metadata["source"]["samples"] == 8
    assert written.metadata["source"]["preset"] == found.recipe.preset
    assert len(written.metadata["source"]["sha256"]) == 64
    # The eight that calibrated are not among those that measured.
    assert written.metadata["accuracy"]["images"] == 28
    assert quantize.weight_bytes(written) <= largest * quantize.weight_bytes(source)
    before, after = predict([source, written], Dataset.open(data))
    assert 0 < np.abs(before - after).max() < 0.1
    # What differs from image to image, differs likewise.
    assert np.corrcoef((before - before.mean(0)).ravel(), (after - after.mean(0)).ravel())[0, 1] > 0.9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("divergence", "left_out"), [(0.16, "none"), (0.15, "first layers")])
def test_the_first_layers_of_a_large_network_stay_float_if_it_pays(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, divergence: float, left_out: str
) -> None:
    pytest.importorskip("nncf")
    monkeypatch.setattr(int8, "FEWEST", 0)
    # Of both presets, and of the better one with the first layers in float.
    monkeypatch.setattr(int8, "divergence", Mock(side_effect=[0.4, 0.3, divergence]))
    data = draw({"bird": 12, "cat": 12, "dog": 12})
    add(tmp_path, "m", baked(), "FP16")
    found = int8.search(lambda: load(find(tmp_path, "m", 1)), pixels_of(tmp_path, data), enough=50)
    assert (found.recipe.left_out, found.recipe.bias_correction) == (left_out, "fast")


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


@pytest.mark.parametrize(("allowed", "written"), [(0.3, False), (30.0, True)])
def test_more_top1_than_allowed_is_not_lost(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, allowed: float, written: bool
) -> None:
    """The work is kept, where nobody serves it."""
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([1, 0, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw({"bird": 4, "cat": 40, "dog": 6})
    settings = Quantization(data, samples=1, validation=data, max_drop=allowed)
    if written:
        settings = replace(settings, max_drop=72)
        folder = quantize.quantize(tmp_path, "m", None, settings)
        accuracy = find(tmp_path, "m", int(folder.name)).metadata["accuracy"]
        assert (accuracy["source_top1"], accuracy["top1"], accuracy["images"]) == (80.0, 8.0, 50)
    else:
        with pytest.raises(ModelError, match=r"loses 72\.00 points .*in .*m-int8/1"):
            quantize.quantize(tmp_path, "m", None, settings)
        assert find(tmp_path, "m-int8").metadata["accuracy"]["top1"] == 8.0
    assert versions(tmp_path, "m") == ([1, 2] if written else [1])


def test_a_loss_that_the_images_do_not_show_refuses_nothing(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 250 photographs three more were wrong, 1.2 points, -0.9 to 3.3: int8 was refused."""
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([1, 0, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw({"bird": 19, "cat": 21})
    quantize.quantize(tmp_path, "m", None, Quantization(data, samples=1, validation=data))
    printed = " ".join(capsys.readouterr().out.split())
    assert "the loss is 5.00 points (paired 95 % interval -25.95 to +35.95)" in printed
    assert "accepted, because these images show no loss above 0.3 points; they do not rule out" in printed
    assert versions(tmp_path, "m") == [1, 2]


def test_a_version_that_is_slower_on_this_machine_is_not_the_served_one(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the CPU computes bfloat16 in AMX, float may take less time than int8, which was served."""
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([0, 0.9, 0.1]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    cost_ms(monkeypatch, before=7.2, after=9.6)
    data = draw(COUNTS)
    folder = quantize.quantize(tmp_path, "m", None, Quantization(data, samples=1, validation=data))
    assert (versions(tmp_path, "m"), folder) == ([1], tmp_path / "m-int8" / "1")
    assert "7.20 ms, INT8 9.60 ms" in capsys.readouterr().out
    cost_ms(monkeypatch, before=7.2, after=4.0)
    quantize.quantize(tmp_path, "m", None, Quantization(data, samples=1, validation=data))
    assert versions(tmp_path, "m") == [1, 2]


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


@pytest.mark.parametrize(("allowed", "written"), [(18, False), (21, True)])
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
    settings = Quantization(draw({"photos": 400}), samples=200, max_drop=allowed)
    if not written:
        with pytest.raises(ModelError, match=r"loses 20\.00 points"):
            quantize.quantize(tmp_path, "m", None, settings)
        assert versions(tmp_path, "m") == [1]
        return
    quantize.quantize(tmp_path, "m", None, settings)
    accuracy = find(tmp_path, "m", 2).metadata["accuracy"]
    assert (accuracy["agreement"], round(accuracy["expected_drop"], 1), accuracy["images"]) == (0, 20, 200)
    assert "has the class 'photos'" in capsys.readouterr().out


def test_few_images_are_shared_between_calibrating_and_measuring(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than --samples: all of them calibrated, and a version that nobody had measured was served next."""
    add(tmp_path, "m", constant([0, 1, 0]), "FP16")
    replace_nncf(monkeypatch, constant([1, 0, 0]))
    monkeypatch.setattr(quantize, "check_shrunk", lambda *_: None)
    data = draw({"bird": 10, "cat": 50})
    with pytest.raises(ModelError, match="not the next version of 'm'"):
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

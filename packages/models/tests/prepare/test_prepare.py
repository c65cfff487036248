from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import onnx
import openvino as ov
import pytest
from click import BadParameter
from openvino import opset13

from deployments.members.openvino import OpenVino
from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import find, sha256, versions
from ensemble_models.baking import bake
from ensemble_models.prepare import __main__ as prepare
from ensemble_models.prepare import pretrained
from ensemble_models.writing import write_version
from packages.models.tests.tiny import LABELS, SIZE, call, constant, convolutions
from scripts.errors import ScriptError

HEIGHT, WIDTH = 4, 5
MEAN = np.array([120.0, 110.0, 100.0])
SCALE = np.array([60.0, 50.0, 40.0])
LAST_LAYER = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)


def averaging(layout: str, *, softmax: bool = False) -> ov.Model:
    """Logits from each channel's mean: [1,3,4,5] or [1,4,5,3] to [1,7]."""
    shape = [1, 3, HEIGHT, WIDTH] if layout == "NCHW" else [1, HEIGHT, WIDTH, 3]
    image = opset13.parameter(shape, ov.Type.f32)
    axes = np.array([2, 3] if layout == "NCHW" else [1, 2])
    answer = opset13.matmul(opset13.reduce_mean(image, axes, keep_dims=False), LAST_LAYER, False, False)
    if softmax:
        # Keras ends like this: the softmax is not the last operation.
        answer = opset13.reshape(opset13.softmax(answer, axis=1), np.array([0, 7]), True)
    return ov.Model([answer], [image])


def expected(bgr: np.ndarray, order: str) -> np.ndarray:
    pixels = bgr[..., ::-1] if order == "RGB" else bgr
    logits = ((pixels - MEAN) / SCALE).mean(axis=(1, 2)) @ LAST_LAYER
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def infer(network: ov.Model, pixels: np.ndarray) -> np.ndarray:
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return ov.Core().compile_model(network, "CPU", options)(pixels)[0]


@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("softmax", [False, True])
def test_a_baked_model_normalizes_as_numpy_does(order: str, layout: str, softmax: bool) -> None:
    network = bake(
        averaging(layout, softmax=softmax),
        size=(HEIGHT, WIDTH),
        mean=list(MEAN),
        scale=list(SCALE),
        channel_order=order,
        layout=layout,
        head="softmax" if softmax else "logits",
    )
    assert network.input(0).get_partial_shape() == ov.PartialShape([-1, HEIGHT, WIDTH, 3])
    assert network.input(0).get_element_type() == ov.Type.u8
    pixels = np.random.default_rng(2).integers(0, 256, (3, HEIGHT, WIDTH, 3), np.uint8)
    pixels[0] = (255, 0, 0)
    np.testing.assert_allclose(infer(network, pixels), expected(pixels, order), atol=1e-5)


def bake_plainly(network: ov.Model) -> ov.Model:
    return bake(network, size=SIZE, mean=[0, 0, 0], scale=[1, 1, 1], channel_order="BGR", layout="NHWC")


def test_a_model_that_fixes_its_batch_inside_keeps_it() -> None:
    image = opset13.parameter([2, *SIZE, 3], ov.Type.f32)
    rows = opset13.reduce_mean(image, np.array([1, 2]), keep_dims=False)
    fixed = ov.Model([opset13.reshape(rows, np.array([2, 3]), False)], [image])
    assert bake_plainly(fixed).input(0).get_partial_shape() == ov.PartialShape([2, *SIZE, 3])


def test_no_classifier_is_refused() -> None:
    image = opset13.parameter([1, *SIZE, 3], ov.Type.f32)
    with pytest.raises(ModelError, match="1 inputs and 2 outputs"):
        bake_plainly(ov.Model([opset13.relu(image), opset13.exp(image)], [image]))
    with pytest.raises(ModelError, match=r"answers .*8,8,3.*\[N, classes\]"):
        bake_plainly(ov.Model([opset13.relu(image)], [image]))
    flat = opset13.parameter([1, 10], ov.Type.f32)
    with pytest.raises(ModelError, match="a member takes images"):
        bake_plainly(ov.Model([opset13.relu(flat)], [flat]))


def test_a_size_that_the_model_does_not_take_is_refused() -> None:
    image = opset13.parameter([1, *SIZE, 3], ov.Type.f32)
    flat = opset13.reshape(image, np.array([-1, 192]), False)
    network = ov.Model([opset13.matmul(flat, np.ones((192, 3), np.float32), False, False)], [image])
    with pytest.raises(ModelError, match="--size"):
        bake(network, size=(9, 9), mean=[0] * 3, scale=[1] * 3, channel_order="BGR", layout="NHWC")


def test_a_version_is_written_wholly_or_not_at_all(tmp_path: Path) -> None:
    def refuse(_: object) -> dict[str, object]:
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        write_version(constant([1, 0]), tmp_path, "m", None, {}, compress_to_fp16=False, check=refuse)
    assert versions(tmp_path, "m") == []
    assert list((tmp_path / "m").iterdir()) == []


def test_versions_count_up_and_are_not_overwritten(tmp_path: Path) -> None:
    def write(version: int | None, note: str, *, replace: bool = False) -> Path:
        metadata = {"note": note}
        return write_version(
            constant([1, 0]), tmp_path, "m", version, metadata, compress_to_fp16=False, replace=replace
        )

    assert [write(None, "a").name, write(None, "b").name] == ["1", "2"]
    with pytest.raises(ModelError, match="version 2"):
        write(2, "c")
    assert find(tmp_path, "m", 2).metadata["note"] == "b"
    write(2, "c", replace=True)
    assert find(tmp_path, "m", 2).metadata["note"] == "c"
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir()) == ["1", "2"]


KNOWN = ("--channel-order", "RGB", "--normalize", "imagenet")


def run(*arguments: object) -> None:
    call(prepare.main, *arguments)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A float IR, outside the repository, and its labels."""
    ov.save_model(convolutions(), tmp_path / "source.xml", compress_to_fp16=False)
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return tmp_path / "source.xml"


def test_an_ir_becomes_a_member(source: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    run(source, "--name", "m", "--labels", tmp_path / "labels.txt", "--repository", repository, *KNOWN)
    model = find(repository, "m")
    assert model.folder == repository / "m" / "1"
    assert model.labels == LABELS
    assert model.input["crop_ratio"] == 0.875
    assert model.metadata["precision"] == "FP16"
    assert model.metadata["input"] == {
        "height": 8, "width": 8, "crop_ratio": 0.875, "layout": "NHWC", "color": "BGR", "type": "uint8"
    }  # fmt: skip
    assert model.metadata["source"]["file"] == "source.xml"
    answers = infer(load(model), np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3), np.uint8))
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)


def test_how_images_are_resized_is_in_the_metadata(source: Path, tmp_path: Path) -> None:
    flags = ["--resize", "letterbox", "--border", 114, 115, 116, "--interpolation", "linear"]
    run(source, "--name", "m", "--repository", tmp_path, *KNOWN, *flags)
    told = OpenVino(kind="openvino", name="m").signature(tmp_path)
    assert (told.resize, told.border, told.interpolation) == ("letterbox", (114, 115, 116), "linear")
    for wrong in (["--border", 1, 2, 3], ["--resize", "letterbox", "--border", 1, 2, 256]):
        with pytest.raises((ScriptError, BadParameter), match=r"--border|256 is not in the range"):
            run(source, "--name", "m", "--repository", tmp_path, *wrong)
    with pytest.raises(ScriptError, match="--crop-ratio is for"):
        run(source, "--name", "m", "--repository", tmp_path, "--resize", "stretch", "--crop-ratio", 0.9)


@pytest.mark.parametrize("name", ["light_densenet121", "light_squeezenet"])
def test_ones_behind_the_classes_are_dropped(name: str, tmp_path: Path) -> None:
    """These two answer [1,1000,1,1]; they are in the `onnx` package."""
    file = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
    run(file, "--name", name, "--repository", tmp_path / "prepared", "--head", "logits", *KNOWN)
    # As it is, too: a folder with nothing but a model.
    (tmp_path / "plain" / name / "1").mkdir(parents=True)
    shutil.copy(file, tmp_path / "plain" / name / "1" / "model.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    for repository in ("prepared", "plain"):
        network = load(find(tmp_path / repository, name))
        assert network.output(0).get_partial_shape() == ov.PartialShape([-1, 1000])
        assert infer(network, pixels).shape == (2, 1000)


def test_a_softmax_of_other_operations_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second one would make all classes nearly alike: the ensemble's 0.99 became 0.64."""
    image = opset13.parameter([-1, 3, HEIGHT, WIDTH], ov.Type.f32)
    logits = opset13.matmul(opset13.reduce_mean(image, np.array([2, 3]), False), 5 * LAST_LAYER, False, False)
    powers = opset13.exp(logits)
    network = ov.Model([opset13.divide(powers, opset13.reduce_sum(powers, np.array([1]), True))], [image])
    ov.save_model(network, tmp_path / "model.xml", compress_to_fp16=False)
    run(
        tmp_path / "model.xml", "--name", "m", "--repository", tmp_path, "--channel-order", "BGR", "--normalize", "unit"
    )
    assert "head: softmax, by its scores of noise: the model answers probabilities" in capsys.readouterr().out
    pixels = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)
    outside = infer(network, (pixels / 255).transpose(0, 3, 1, 2).astype(np.float32))
    np.testing.assert_allclose(infer(load(find(tmp_path, "m")), pixels), outside, atol=0.01)


def test_the_default_mean_is_in_the_order_of_the_channels(source: Path, tmp_path: Path) -> None:
    for name, order in (("rgb", "RGB"), ("bgr", "BGR")):
        run(source, "--name", name, "--repository", tmp_path / "repository", *KNOWN, "--channel-order", order)
    rgb, bgr = (find(tmp_path / "repository", name).metadata["source"] for name in ("rgb", "bgr"))
    assert rgb["mean"] == [0.485, 0.456, 0.406]
    assert bgr["mean"] == [0.406, 0.456, 0.485]
    assert bgr["std"] == rgb["std"][::-1] == [0.225, 0.224, 0.229]


def test_weights_that_come_in_float16_stay_so(tmp_path: Path) -> None:
    ov.save_model(convolutions(), tmp_path / "half.xml", compress_to_fp16=True)
    run(tmp_path / "half.xml", "--name", "m", "--precision", "FP32", "--repository", tmp_path / "repository", *KNOWN)
    assert find(tmp_path / "repository", "m").metadata["precision"] == "FP16"


def test_float16_takes_half_of_float32(source: Path, tmp_path: Path) -> None:
    for precision in ("FP16", "FP32"):
        run(source, "--name", precision, "--precision", precision, "--repository", tmp_path / "repository", *KNOWN)
    half, full = (
        (tmp_path / "repository" / precision / "1" / "model.bin").stat().st_size for precision in ("FP16", "FP32")
    )
    assert half == pytest.approx(full / 2, rel=0.02)


def test_a_changed_file_is_not_loaded(source: Path, tmp_path: Path) -> None:
    run(source, "--name", "m", "--repository", tmp_path / "repository", *KNOWN)
    folder = tmp_path / "repository" / "m" / "1"
    weights = bytearray((folder / "model.bin").read_bytes())
    weights[100] ^= 1
    (folder / "model.bin").write_bytes(weights)
    with pytest.raises(ModelError, match=r"model\.bin does not match the SHA-256"):
        load(find(tmp_path / "repository", "m"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mean", "123", "116", "103"], "divide values for 0 to 255 by 255"),
        (["--std", "0", "1", "1"], "divide values"),
        (["--crop-ratio", "0"], "0.0 is not in the range 0<x<=1"),
        (["--weights", "random"], "--weights is for torchvision's and timm's"),
        (["--labels", "{two}"], "3 classes, but there are 2 labels"),
        (["--labels", "missing.txt"], "does not exist"),
        (["--name", "../m"], "--name"),
    ],
)
def test_wrong_flags_are_explained(source: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "two").write_text("bird\ncat\n")
    flags = [flag.format(two=tmp_path / "two") for flag in flags]
    with pytest.raises((ScriptError, ModelError, click.UsageError)) as refused:
        run(source, "--name", "m", "--repository", tmp_path / "repository", *KNOWN, *flags)
    assert message in str(refused.value)
    assert versions(tmp_path / "repository", "m") == []


def test_a_model_of_bytes_is_not_normalized_twice(tmp_path: Path) -> None:
    ov.save_model(constant([0.2, 0.3, 0.5]), tmp_path / "bytes.xml")
    flags = ("--name", "m", "--repository", tmp_path / "repository", *KNOWN)
    with pytest.raises(ScriptError, match="--normalize none"):
        run(tmp_path / "bytes.xml", *flags)
    run(tmp_path / "bytes.xml", *flags, "--normalize", "none")
    assert versions(tmp_path / "repository", "m") == [1]


def test_mistakes_end_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "broken.onnx"), "--name", "m"])
    with pytest.raises(SystemExit) as caught:
        prepare.main()
    assert str(caught.value).startswith("error: OpenVINO can't read")
    assert "\n" not in str(caught.value)


def test_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["logits"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", 3])],
    )
    opset = helper.make_opsetid("", 13)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "classifier.onnx")
    flags = ("--name", "m", "--repository", tmp_path / "repository", *KNOWN)
    with pytest.raises(ScriptError, match="--size HEIGHT WIDTH"):
        run(tmp_path / "classifier.onnx", *flags)
    run(tmp_path / "classifier.onnx", *flags, "--size", 6, 4)
    red = np.zeros((1, 6, 4, 3), np.uint8)
    red[..., 2] = 255
    assert infer(load(find(tmp_path / "repository", "m")), red).argmax() == 0


def test_names_need_a_word_on_weights(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="--weights"):
        run("resnet50", "--name", "m", "--repository", tmp_path)
    with pytest.raises(ModelError, match=r"there is no missing\.onnx"):
        run("missing.onnx", "--name", "m", "--repository", tmp_path)


def test_an_unknown_name_is_told_what_is_like_it(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    with pytest.raises(ModelError, match=r"no model 'resnet51' in torchvision .*; did you mean 'resnet50'"):
        run("resnet51", "--weights", "random", "--name", "m", "--repository", tmp_path)
    with pytest.raises(ModelError, match="no model 'resnet51' in timm"):
        run("timm/resnet51", "--weights", "random", "--name", "m", "--repository", tmp_path)


PRINTED = """ImageClassification(
    crop_size=[224]
    resize_size=[256]
    mean=[0.5, 0.5, 0.5]
    std=[0.25, 0.25, 0.25]
    interpolation=InterpolationMode.BICUBIC
)"""


class Torchvision:
    """The little of torchvision that is asked, around a network of one layer; builders load by PyTorch's hub."""

    __version__ = "0"

    def __init__(self, url: str) -> None:
        self.models = self
        self.weights = SimpleNamespace(
            url=url,
            meta={"categories": LABELS},
            transforms=lambda: PRINTED,
        )

    def list_models(self, module: object) -> list[str]:
        return ["one_layer"]

    def get_model_weights(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(DEFAULT=self.weights)

    def get_model(self, name: str, weights: SimpleNamespace) -> Any:
        import torch

        network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
        network.load_state_dict(torch.hub.load_state_dict_from_url(weights.url, check_hash=True))
        return network


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_official_weights_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    weights = {"2.weight": torch.eye(3), "2.bias": torch.zeros(3)}
    torch.save(weights, tmp_path / "weights")
    digest = sha256(tmp_path / "weights")
    served = tmp_path / f"one_layer-{digest[:8]}.pth"
    (tmp_path / "weights").rename(served)
    monkeypatch.setitem(sys.modules, "torchvision", Torchvision(served.as_uri()))
    flags = ("one_layer", "--weights", "default", "--name", "m", "--repository", tmp_path / "repository")
    run(*flags)
    model = find(tmp_path / "repository", "m")
    assert model.metadata["source"]["sha256"] == digest
    assert model.metadata["source"]["mean"] == [0.5] * 3
    # The filter of its training, in place of the server's default.
    assert (model.input["crop_ratio"], model.input["interpolation"]) == (0.875, "bicubic")
    assert model.labels == LABELS
    blue = np.zeros((1, 224, 224, 3), np.uint8)
    blue[..., 0] = 255
    assert infer(load(model), blue).argmax() == 2

    downloaded = tmp_path / "checkpoints" / served.name
    downloaded.write_bytes(b"x" + downloaded.read_bytes()[1:])
    with pytest.raises(ModelError, match="is damaged"):
        run(*flags)
    # A file whose digits are right, but which runs code when it is unpickled.
    torch.save({"2.weight": print}, tmp_path / "weights")
    served = tmp_path / f"one_layer-{sha256(tmp_path / 'weights')[:8]}.pth"
    (tmp_path / "weights").rename(served)
    monkeypatch.setitem(sys.modules, "torchvision", Torchvision(served.as_uri()))
    with pytest.raises(ModelError, match="weights_only"):
        run(*flags)
    assert versions(tmp_path / "repository", "m") == [1]


# PyTorch calls its own tracer deprecated, which OpenVINO's converter uses; the tracer warns of what it does not follow.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "vit_b_16"])
def test_random_weights_are_those_of_a_seed(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torchvision")
    run(name, "--weights", "random", "--name", "m", "--repository", tmp_path)
    model = find(tmp_path, "m")
    assert model.metadata["source"]["weights"] == "random"
    assert np.isfinite(infer(load(model), np.zeros((1, 224, 224, 3), np.uint8))).all()


def test_a_model_that_is_not_converted_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*_: object, **__: object) -> None:
        raise ValueError("Tracing failed sanity checks!\n" + "a page of the graph\n" * 100)

    mha = SimpleNamespace(set_fastpath_enabled=lambda _: None)
    torch = SimpleNamespace(backends=SimpleNamespace(mha=mha), zeros=lambda *_: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(pretrained.ov, "convert_model", convert)
    model = SimpleNamespace(eval=lambda: None)
    with pytest.raises(
        ModelError, match=r"can't convert .*Tracing failed sanity checks!; export it by torch\.onnx"
    ) as told:
        pretrained._network(model, (8, 8))
    assert "\n" not in str(told.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_timms_official_weights_are_those_that_the_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the hub's own cache, as a download leaves it: blobs by their SHA-256, linked to by a commit's files."""
    timm = pytest.importorskip("timm")
    from huggingface_hub import constants
    from safetensors.torch import save_file

    name = "test_resnet"
    repository = timm.get_pretrained_cfg(name).hf_hub_id
    root = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    for folder in ("blobs", "refs", "snapshots/abc"):
        (root / folder).mkdir(parents=True)
    model = timm.create_model(name)
    save_file(model.state_dict(), tmp_path / "weights")
    blob = root / "blobs" / sha256(tmp_path / "weights")
    (tmp_path / "weights").rename(blob)
    (root / "refs" / "main").write_text("abc")
    (root / "snapshots" / "abc" / "model.safetensors").symlink_to(blob)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    flags = (f"timm/{name}", "--weights", "default", "--name", "m", "--repository", tmp_path / "repository")
    run(*flags)
    written = find(tmp_path / "repository", "m")
    recipe = timm.data.resolve_data_config(model=model)
    assert written.metadata["source"]["sha256"] == blob.name
    side = recipe["input_size"][1]
    assert (written.input["height"], written.input["crop_ratio"]) == (side, side / int(side // recipe["crop_pct"]))
    assert written.input["interpolation"] == recipe["interpolation"]
    assert written.metadata["source"]["mean"] == list(recipe["mean"])
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelError, match="is damaged"):
        run(*flags)
    with pytest.raises(ModelError, match=r"can't get the weights of .*--weights random"):
        run("timm/test_vit", *flags[1:])
    assert versions(tmp_path / "repository", "m") == [1]


@pytest.mark.parametrize(
    ("name", "told"), [("m.pt2", "torch.onnx.export"), ("m.pth", "torch.onnx.export"), ("m.keras", "SavedModel")]
)
def test_files_that_run_what_is_in_them_are_not_read(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelError, match=told):
        run(tmp_path / name, "--name", "m", "--repository", tmp_path / "repository", *KNOWN)

"""What exporters write in and beside a model decides how it takes images; each folder here is written by the schema.

docs/reference/kinds.md shows the same two tables of folders; a test compares them.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import yaml
from openvino import opset13

from deployments.repository.errors import ModelError
from deployments.repository.repository import Model, find
from ensemble_models import export, init
from ensemble_models.exporters.folder import default_name, model_in
from ensemble_models.exporters.names import fitting, names_in
from ensemble_models.prepare import __main__ as prepare
from packages.models.tests.tiny import call
from scripts.errors import ScriptError
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "kinds.md"
LABELS = ("ant", "big cat", "dog's")
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def network(side: int = 16, before: Callable[[Any], Any] = lambda image: image, layout: str = "NCHW") -> ov.Model:
    """A filter and a mean of each filter's levels: float32 [N,3,side,side] to logits [N,3]."""
    shape = [-1, 3, side, side] if layout == "NCHW" else [-1, side, side, 3]
    image = opset13.parameter(shape, ov.Type.f32)
    first = before(image)
    if layout == "NHWC":
        first = opset13.transpose(first, np.array([0, 3, 1, 2]))
    filters = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    levels = opset13.convolution(first, filters, [1, 1], [0, 0], [0, 0], [1, 1])
    return ov.Model([opset13.reduce_mean(levels, np.array([2, 3]), keep_dims=False)], [image])


def save(folder: Path, made: ov.Model | None = None, **files: Any) -> Path:
    """Write a model and the files beside it, `config_json={...}` as `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(made or network(), folder / "model.xml", compress_to_fp16=False)
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.{suffix}").write_text(yaml.safe_dump(content) if suffix == "yaml" else text)
    return folder


def prepared(source: Path, *flags: object) -> Model:
    repository = source.parent / "models"
    call(prepare.main, source, "--repository", repository, "--name", "m", *flags)
    return find(repository, "m")


def with_info(model: ov.Model, **fields: Any) -> ov.Model:
    for name, value in fields.items():
        model.set_rt_info(value, ["model_info", name])
    return model


HUGGING = {"id2label": {str(index): name for index, name in enumerate(LABELS)}, "architectures": ["X"]}
VIT = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 2,
    "size": {"height": 16, "width": 16},
}
TIMM = {
    "architecture": "x",
    "label_names": list(LABELS),
    "pretrained_cfg": {
        "input_size": [3, 16, 16],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        **IMAGENET,
    },
}
YOLO = {"task": "classify", "names": dict(enumerate(LABELS)), "imgsz": [16, 16], "channels": 3}
TORCHVISION = """ImageClassification(
    crop_size=[16]
    resize_size=[20]
    mean=[0.485, 0.456, 0.406]
    std=[0.229, 0.224, 0.225]
    interpolation=InterpolationMode.BILINEAR
)"""
COMPOSE = """Compose(
      ToImage()
      Resize(size=[20], interpolation=bicubic, antialias=True)
      CenterCrop(size=(16, 16))
      ToDtype(scale=True)
      Normalize(mean=tensor([0.5000, 0.5000, 0.5000]), std=[0.5, 0.5, 0.5], inplace=False)
)"""
SQUARE = "Compose(\n  Resize(size=(16, 16), interpolation=bilinear)\n  ToTensor()\n)"
SEQUENTIAL = """Sequential(
  (0): Resize(size=[20], interpolation=bilinear, antialias=True)
  (1): CenterCrop(size=(16, 16))
  (2): ConvertImageDtype()
  (3): Normalize(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])
)"""
# By the exporter, as the page names it: its files, and the normalization, resize, crop ratio and filter they state.
RIGHT: dict[str, tuple[dict[str, Any], tuple[str, str, float, str]]] = {
    "Ultralytics": ({"metadata_yaml": YOLO}, ("unit", "crop", 1.0, "bilinear")),
    "timm": ({"config_json": TIMM}, ("imagenet", "crop", 16 / 17, "bicubic")),
    "timm, `crop_mode` is `squash`": (
        {"config_json": {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], "crop_pct": 1.0, "crop_mode": "squash"}}},
        ("imagenet", "stretch", 1.0, "bicubic"),
    ),
    "transformers, ViT's processor": (
        {"config_json": HUGGING, "preprocessor_config_json": VIT},
        ("symmetric", "stretch", 1.0, "bilinear"),
    ),
    "transformers, CLIP's processor": (
        {
            "config_json": HUGGING,
            "preprocessor_config_json": {
                **VIT,
                "size": {"shortest_edge": 20},
                "do_center_crop": True,
                "crop_size": {"height": 16, "width": 16},
            },
        },
        ("symmetric", "crop", 0.8, "bilinear"),
    ),
    "transformers, a feature extractor whose `size` is a number": (
        {
            "config_json": HUGGING,
            "preprocessor_config_json": {
                "feature_extractor_type": "X",
                "size": 16,
                "resample": 3,
                "image_mean": IMAGENET["mean"],
                "image_std": IMAGENET["std"],
            },
        },
        ("imagenet", "stretch", 1.0, "bicubic"),
    ),
    "transformers, ConvNeXT's processor": (
        {
            "config_json": HUGGING,
            "preprocessor_config_json": {
                **VIT,
                "image_processor_type": "ConvNextImageProcessor",
                "crop_pct": 0.8,
                "size": {"shortest_edge": 16},
            },
        },
        ("symmetric", "crop", 0.8, "bilinear"),
    ),
    "torchvision, the printed transforms of its weights": (
        {"transforms_txt": TORCHVISION, "labels_txt": "\n".join(LABELS)},
        ("imagenet", "crop", 0.8, "bilinear"),
    ),
    "torchvision, a printed `Compose` of transforms v2": (
        {"transforms_txt": COMPOSE, "classes_json": {name: at for at, name in enumerate(LABELS)}},
        ("symmetric", "crop", 0.8, "bicubic"),
    ),
    "torchvision, a printed `torch.nn.Sequential`": (
        {"transforms_txt": SEQUENTIAL, "labels_txt": "\n".join(LABELS)},
        ("symmetric", "crop", 0.8, "bilinear"),
    ),
    "torchvision, a printed `Compose` that stretches": (
        {"transforms_txt": SQUARE, "labels_txt": "\n".join(LABELS)},
        ("unit", "stretch", 1.0, "bilinear"),
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_folder_needs_no_option(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, (name, resize, ratio, interpolation) = RIGHT[kind]
    model = prepared(save(tmp_path / "theirs", **files))
    printed = capsys.readouterr().out
    assert f"--channel-order RGB --normalize {name}, by " in printed
    assert model.labels == LABELS
    found = {"resize": "crop", "interpolation": "area", **model.input}
    assert (found["resize"], found["interpolation"]) == (resize, interpolation)
    assert found["crop_ratio"] == pytest.approx(ratio)
    stated = model.source["stated"]
    assert all(file.split("_")[0] in "".join(stated.values()) for file in files)


def test_flipped_channels_and_a_factor_are_read(tmp_path: Path) -> None:
    """MobileViT's processor gives blue first, EfficientNet's divides twice and may subtract one."""
    flipped = {**VIT, "do_normalize": False, "do_flip_channel_order": True}
    assert prepared(save(tmp_path / "a", preprocessor_config_json=flipped)).source["channel_order"] == "BGR"
    twice = {**VIT, "image_processor_type": "EfficientNetImageProcessor", "rescale_factor": 1 / 127.5}
    source = prepared(save(tmp_path / "b", preprocessor_config_json={**twice, "rescale_offset": True})).source
    np.testing.assert_allclose((source["mean"], source["std"]), ([0.75] * 3, [0.125] * 3), atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "order", "mean"),
    [
        ({"reverse_input_channels": True, "scale_values": [255.0], "labels": ["a", "b", "c"]}, "RGB", 0.0),
        ({"reverse_input_channels": "YES", "mean_values": "127.5 127.5 127.5", "scale_values": "127.5"}, "RGB", 0.5),
        ({"color": "BGR", "scale_values": "255"}, "BGR", 0.0),
    ],
)
def test_model_api_s_info_is_read(tmp_path: Path, fields: dict[str, Any], order: str, mean: float) -> None:
    made = with_info(
        network(), model_type="Classification", resize_type="fit_to_window_letterbox", pad_value=7, **fields
    )
    model = prepared(save(tmp_path / "theirs", made))
    assert (model.source["channel_order"], model.source["mean"]) == (order, [mean] * 3)
    assert (model.input["resize"], model.input["border"]) == ("letterbox", [7, 7, 7])


@pytest.mark.parametrize("ratio", ["1.15", "0", "much"])
def test_a_crop_ratio_is_a_share(tmp_path: Path, ratio: str) -> None:
    made = with_info(network(), model_type="Classification", color="RGB", crop_ratio=ratio)
    with pytest.raises(ModelError, match=r"crop_ratio is .* not understood"):
        prepared(save(tmp_path / "theirs", made))


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (lambda image: opset13.subtract(opset13.multiply(image, np.float32(1 / 127.5)), np.float32(1)), "none"),
        (lambda image: opset13.divide(image, np.float32(255)), "none"),
        (lambda image: opset13.add(image, np.array([-103.939, -116.779, -123.68], np.float32)), "none"),
        (lambda image: opset13.multiply(opset13.subtract(image, np.float32(0.45)), np.float32(1 / 0.225)), "unit"),
    ],
)
def test_operations_inside_are_read(tmp_path: Path, before: Callable[[Any], Any], name: str) -> None:
    folder = save(tmp_path / "theirs", network(before=before, layout="NHWC"), labels_txt="a\nb\nc")
    with pytest.raises(ScriptError, match=r"does not say in which order .*; say it by --channel-order"):
        prepared(folder)
    model = prepared(folder, "--channel-order", "RGB")
    expected = 1 / 255 if name == "none" else 1.0
    np.testing.assert_allclose(model.source["std"], [expected] * 3, rtol=1e-6)
    assert "first operations" in model.source["stated"]["mean"]


# By the fault, as the page names it: the files, the error, its message, and what decides.
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str, str]] = {
    "two files with the classes in different orders": (
        {"labels_txt": "a\nb\nc", "classes_txt": "b\na\nc", "transforms_txt": SQUARE},
        ScriptError,
        "contradict.*--labels",
        "`--labels`",
    ),
    "another task than classification": (
        {"metadata_yaml": {**YOLO, "task": "detect"}},
        ModelError,
        "task is detect",
        "a model that classifies images",
    ),
    "several classes per image": (
        {"config_json": {**HUGGING, "problem_type": "multi_label_classification"}, "preprocessor_config_json": VIT},
        ScriptError,
        "a probability of its own.*--head",
        "`--head`",
    ),
    "an image that is padded": (
        {"preprocessor_config_json": {**VIT, "size": {"shortest_edge": 12}, "do_center_crop": True, "crop_size": 16}},
        ScriptError,
        "which the server can't; say it by --resize",
        "`--resize` or `--crop-ratio`",
    ),
    "timm, `crop_pct` above 1": (
        {"config_json": {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], "crop_pct": 1.15}}},
        ScriptError,
        "which the server can't; say it by --resize",
        "`--resize` or `--crop-ratio`",
    ),
    "a printed step that `prepare` does not read": (
        {"transforms_txt": "Compose(\n  Resize(size=(16, 16))\n  GaussianBlur(kernel_size=3)\n  ToTensor()\n)"},
        ScriptError,
        "GaussianBlur is a step that is not read",
        "`--resize` or `--crop-ratio`",
    ),
    "transforms as a program has them, and not as they are printed": (
        {"transforms_txt": "transforms.Compose([transforms.Resize(20), transforms.ToTensor()])"},
        ModelError,
        "has no step on a line of its own",
        "the printed transforms",
    ),
    "a step of a processor that `prepare` does not read": (
        {"preprocessor_config_json": {**VIT, "do_pad": True}},
        ScriptError,
        "do_pad is a step that is not read",
        "`--resize` or `--crop-ratio`",
    ),
    "a processor that does not resize": (
        {"preprocessor_config_json": {**VIT, "do_resize": False}},
        ScriptError,
        "does not name height and width to resize to",
        "`--resize` or `--crop-ratio`",
    ),
    "a processor that normalizes, without a mean": (
        {"preprocessor_config_json": {**VIT, "image_mean": None}},
        ScriptError,
        "normalizes, but does not have image_mean",
        "`--mean` or `--normalize`",
    ),
    "a standard deviation of 0": (
        {"preprocessor_config_json": {**VIT, "image_std": [0, 0, 0]}},
        ModelError,
        "a standard deviation is not above 0",
        "three numbers above 0",
    ),
    "a `crop_pct` that is no number": (
        {"config_json": {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], "crop_pct": "0.9"}}},
        ModelError,
        r"config\.json is not understood",
        "a number",
    ),
    "another size than the model's own": (
        {"metadata_yaml": {**YOLO, "imgsz": [32, 32]}},
        ScriptError,
        "takes 16 x 16 pixels, and metadata.yaml: .* says 32 x 32; say which by --size",
        "`--size`",
    ),
    "a damaged `config.json`": ({"config_json": "{"}, ModelError, "config.json is damaged", "the whole file"),
    "another number of classes than the model has": (
        {"labels_txt": "a\nb", "transforms_txt": SQUARE},
        ScriptError,
        "3 classes, but there are 2 labels in labels.txt",
        "`--labels`",
    ),
    "a mean that is no number": (
        {"config_json": {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], "mean": "grey"}}},
        ModelError,
        "mean is 'grey', which is not understood",
        "three numbers",
    ),
    "two files with different means": (
        {"transforms_txt": SQUARE, "preprocessor_config_json": VIT},
        ScriptError,
        "contradict each other about mean",
        "`--mean` or `--normalize`",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_not_understood_is_refused(kind: str, tmp_path: Path) -> None:
    files, error, message, remedy = WRONG[kind]
    with pytest.raises(error, match=message) as caught:
        prepared(save(tmp_path / "theirs", **files))
    assert not (tmp_path / "models").exists()
    assert [option for option in re.findall(r"--[a-z-]+", remedy) if option not in str(caught.value)] == []


def test_the_page_has_every_folder() -> None:
    right = [
        f"| {what} | {normalization} | {resize} | {ratio:.3g} | {interpolation} |"
        for what, (_, (normalization, resize, ratio, interpolation)) in RIGHT.items()
    ]
    wrong = [f"| {what} | refused: {remedy} |" for what, (*_, remedy) in WRONG.items()]
    page = PAGE.read_text(encoding="utf-8")
    for rows in (right, wrong):
        table = "\n".join(rows)
        assert table in page, f"{PAGE} lacks:\n{table}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"cat\nbig dog\neel\n\n  \n"),
        ("a.txt", b"0 cat\r\n1 big dog\r\n2 eel"),
        ("a.txt", b"1: cat\n2: big dog\n3: eel"),
        ("a.txt", b"2,eel\n0,cat\n1,big dog"),
        ("a.txt", b"cat 0\nbig dog 1\neel 2"),
        ("a.txt", "cat\nbig dog\neel".encode("utf-16")),
        ("a.txt", b"\xef\xbb\xbfcat\nbig dog\neel"),
        ("a.txt", b"n01440764 cat\nn01443537 big dog\nn01484850 eel"),
        ("a.txt", b"{0: 'cat',\n 1: 'big dog',\n 2: \"eel\"}"),
        ("a.json", b'["cat", "big dog", "eel"]'),
        ("a.json", b'{"0": "cat", "2": "eel", "1": "big dog"}'),
        ("a.json", b'{"cat": 0, "big dog": 1, "eel": 2}'),
        ("a.json", b'{"0": ["n1", "cat"], "1": ["n2", "big dog"], "2": ["n3", "eel"]}'),
        ("a.json", b'{"version": 1, "labels": [{"id": 0, "name": "cat"}, {"name": "big dog"}, {"name": "eel"}]}'),
        ("classes.yaml", b"path: ../images\nnames:\n  0: cat\n  1: big dog\n  2: eel\n"),
        ("a.yml", b"- cat\n- big dog\n- eel\n"),
        ("a.yaml", b"cat: 0\nbig dog: 1\neel: 2\n"),
        ("a.csv", b"index,name\n1,big dog\n0,cat\n2,eel\n"),
        ("a.csv", b"cat\nbig dog\neel\n"),
        ("a.csv", b"name;id\ncat;0\nbig dog;1\neel;2\n"),
        ("a.tsv", b"0\tcat\n1\tbig dog\n2\teel\n"),
        ("a.csv", b'id,wnid,class_name\n0,n1,cat\n1,n2,"big dog"\n2,n3,eel\n'),
    ],
)
def test_labels_in_every_usual_form(name: str, content: bytes) -> None:
    assert names_in(content, Path(name)) == ("cat", "big dog", "eel")


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.txt", b"0\n1\n2", ("0", "1", "2")),
        ("a.txt", b"type 0\ntype 1", ("type 0", "type 1")),
        ("a.txt", b"3 stars\n5 stars", ("3 stars", "5 stars")),
        ("a.txt", b"crane, bird\ncrane, machine", ("crane, bird", "crane, machine")),
        ("a.txt", b"0 crane\n1 crane\n2 eel", ("crane (0)", "crane (1)", "eel")),
        ("a.csv", b"0,eel\n1,crane\n2,crane", ("eel", "crane (1)", "crane (2)")),
    ],
)
def test_names_with_numbers_and_commas_stay(name: str, content: bytes, names: tuple[str, ...]) -> None:
    assert names_in(content, Path(name)) == names


@pytest.mark.parametrize(
    "content", [b"{", b'{"0": "a", "2": "b"}', b"[1.5, {}]", b"[" * 100_000, b"\xff\xfe\x00", b"caf\xe9"]
)
def test_labels_in_no_form_are_refused(content: bytes) -> None:
    for name in ("a.json", "a.yaml"):
        with pytest.raises(ModelError):
            names_in(content, Path(name))


@pytest.mark.parametrize("content", [b"cat\nbig dog\n", b"a: [", b"nc: 3\n", b""])
def test_yaml_without_names_is_refused_in_a_sentence(content: bytes) -> None:
    with pytest.raises(ModelError, match=r"a\.yaml has no class names in a usual form|a\.yaml has no labels"):
        names_in(content, Path("a.yaml"))


def test_a_background_class_is_recognized() -> None:
    assert fitting(("background", "a", "b"), 2) == ("a", "b")
    assert fitting(("a", "b", "c"), 2) == ("a", "b", "c")
    assert fitting([str(number) for number in range(1000)], 1001)[:2] == ("background", "0")


def test_mlflow_and_onnx_properties(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, folder = onnx.helper, tmp_path / "run" / "theirs"
    folder.mkdir(parents=True)
    ends = [
        helper.make_tensor_value_info(name, 1, shape) for name, shape in (("image", [1, 3, 16, 16]), ("scores", [1, 3]))
    ]
    mean = helper.make_node("ReduceMean", ["image"], ["scores"], axes=[2, 3], keepdims=0)
    made = helper.make_model(
        helper.make_graph([mean], "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    onnx.save(made, folder / "model.onnx")
    helper.set_model_props(made, {key: str(value) for key, value in YOLO.items()})
    onnx.save(made, tmp_path / "yolo.onnx")
    model = prepared(tmp_path / "yolo.onnx")
    assert model.labels == LABELS
    # It leaves as it came, and comes back the same.
    call(export.main, "m", tmp_path / "out", "--onnx", tmp_path / "yolo.onnx", "--repository", tmp_path / "models")
    properties = {each.key: each.value for each in onnx.load(tmp_path / "out" / "m.onnx").metadata_props}
    assert properties["model_info scale_values"] == "255 255 255"
    assert properties["model_info labels"].startswith("ant big_cat")
    onnx.checker.check_model(tmp_path / "out" / "m.onnx")
    again = prepared(tmp_path / "out" / "m.onnx")
    assert (again.labels, again.input, again.source["std"]) == (model.labels, model.input, model.source["std"])
    with pytest.raises(ModelError, match="was not prepared from"):
        call(export.main, "m", tmp_path / "more", "--onnx", folder / "model.onnx", "--repository", tmp_path / "models")
    (folder / "MLmodel").write_text(
        yaml.safe_dump({"flavors": {"onnx": {"data": "model.onnx"}, "python_function": {}}})
    )
    assert model_in(folder) == (folder / "model.onnx").resolve()
    (folder / "MLmodel").write_text(yaml.safe_dump({"flavors": {"onnx": {"data": "../../yolo.onnx"}}}))
    with pytest.raises(ModelError, match="not in its folder"):
        model_in(folder)
    (folder / "MLmodel").write_text(yaml.safe_dump({"flavors": {"sklearn": {}}}))
    with pytest.raises(ModelError, match="no flavor onnx, only sklearn"):
        model_in(folder)


def test_an_exported_ir_comes_back_the_same(tmp_path: Path) -> None:
    model = prepared(save(tmp_path / "theirs", config_json=TIMM))
    call(export.main, "m", tmp_path / "out", "--repository", tmp_path / "models")
    info = ov.Core().read_model(tmp_path / "out" / "m.xml").get_rt_info(["model_info"]).value
    assert str(info["labels"]).split() == ["ant", "big_cat", "dog's"]
    again = prepared(tmp_path / "out" / "m.xml")
    assert (again.labels, again.input) == (model.labels, model.input)
    with pytest.raises(ScriptError, match="is there already"):
        call(export.main, "m", tmp_path / "out", "--repository", tmp_path / "models")


def test_init_takes_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("one"), config_json=TIMM)
    save(Path("two"), metadata_yaml=YOLO)
    call(init.main, "my.yaml", "--members", "one", "--members", "two")
    members = yaml.safe_load(Path("my.yaml").read_text())["applications"][0]["args"]["members"]
    assert [each["name"] for each in members] == ["one", "two"]


def test_a_folder_with_several_models_is_asked_about(tmp_path: Path) -> None:
    save(tmp_path / "theirs")
    (tmp_path / "theirs" / "other.onnx").touch()
    with pytest.raises(ModelError, match=r"2 models \(model.xml, other.onnx\)|2 models \(other.onnx, model.xml\)"):
        model_in(tmp_path / "theirs")
    assert default_name(tmp_path / "My net #2" / "onnx" / "model.onnx") == "My-net-2"
    with pytest.raises(ModelError, match="has no model"):
        model_in(save(tmp_path / "deep" / "er" / "est").parents[1])


def flatbuffer(tables: dict[int, Any]) -> bytes:
    """Write a table whose fields are tables (dict), vectors of tables (list), texts, numbers or float vectors."""
    flatbuffers = pytest.importorskip("flatbuffers")
    builder = flatbuffers.Builder(64)

    def write(fields: dict[int, Any]) -> int:
        placed: dict[int, tuple[str, Any]] = {}
        for number, value in fields.items():
            if isinstance(value, dict):
                placed[number] = ("offset", write(value))
            elif isinstance(value, bytes):
                placed[number] = ("offset", builder.CreateByteVector(value))
            elif isinstance(value, str):
                placed[number] = ("offset", builder.CreateString(value))
            elif isinstance(value, list):
                floats = isinstance(value[0], float)
                inner = value if floats else [write(each) for each in value]
                builder.StartVector(4, len(inner), 4)
                for each in reversed(inner):
                    builder.PrependFloat32(each) if floats else builder.PrependUOffsetTRelative(each)
                placed[number] = ("offset", builder.EndVector())
            else:
                placed[number] = ("number", value)
        builder.StartObject(max(fields) + 1)
        for number, (kind, value) in placed.items():
            if kind == "offset":
                builder.PrependUOffsetTRelativeSlot(number, value, 0)
            elif number == 1:
                builder.PrependUint32Slot(number, value, 0)
            else:
                builder.PrependUint8Slot(number, value, 0)
        return builder.EndObject()

    builder.Finish(write(tables))
    return bytes(builder.Output())


def test_tflite_s_metadata_are_read(tmp_path: Path) -> None:
    from ensemble_models.exporters import tflite

    options = {0: 1, 1: {0: [127.5], 1: [127.5]}}
    described = flatbuffer({3: [{2: [{4: [options]}], 3: [{6: [{0: "labels.txt", 2: 2}]}]}]})
    model = flatbuffer({4: [{0: b""}, {0: described}], 6: [{0: "TFLITE_METADATA", 1: 1}]})
    file = tmp_path / "model.tflite"
    file.write_bytes(model)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("labels.txt", "\n".join(LABELS))
    facts = {fact.name: fact.value for fact in tflite.metadata(file)}
    assert facts == {"mean": (0.5,) * 3, "std": (0.5,) * 3, "labels": LABELS}
    for length in range(0, len(model), 7):
        file.write_bytes(model[:length])
        try:
            list(tflite.metadata(file))
        except ModelError:
            continue

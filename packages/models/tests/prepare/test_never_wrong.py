"""Models in all layouts, channel orders and scales are prepared to be right, or refused."""

from __future__ import annotations

import zipfile
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from deployments.repository.errors import ModelError
from deployments.repository.layout import layout_of
from deployments.repository.network import load
from deployments.repository.repository import find, versions
from ensemble_models.dataset import Dataset, truth
from ensemble_models.prediction import predict
from ensemble_models.prepare import __main__ as prepare
from ensemble_models.prepare.source import USUAL, Normalization
from ensemble_models.statistics import top1
from packages.models.tests.tiny import call
from scripts.errors import ScriptError

HEIGHT, WIDTH = 8, 12
# Red, green and blue of each class; no normalization but its own puts all of them where a model looks for them.
COLOURS = {
    "coal": (20, 20, 25), "lake": (30, 90, 200), "meadow": (60, 160, 50), "poppy": (210, 40, 40),
    "sand": (220, 190, 120), "slate": (100, 105, 110), "snow": (245, 245, 250),
}  # fmt: skip
# Some of them; tests/server/test_own_models.py has all, served.
WAYS = list(product(("NCHW", "NHWC"), ("RGB", "BGR"), ("imagenet", "unit", "symmetric")))[::5]


def nearest(layout: str, way: Normalization) -> ov.Model:
    """Logits by how near an image's mean colour is to each class', in the model's own space."""
    colours = np.array(list(COLOURS.values()), np.float64)[:, :: 1 if way.order == "RGB" else -1] / 255
    wanted = ((colours - way.mean) / way.std).astype(np.float32)
    shape, axes = ([-1, 3, HEIGHT, WIDTH], [2, 3]) if layout == "NCHW" else ([-1, HEIGHT, WIDTH, 3], [1, 2])
    image = opset13.parameter(shape, ov.Type.f32)
    mean = opset13.unsqueeze(opset13.reduce_mean(image, np.array(axes), keep_dims=False), np.array([1]))
    apart = opset13.squared_difference(mean, wanted[None])
    return ov.Model([opset13.multiply(opset13.reduce_sum(apart, np.array([2]), False), np.float32(-4))], [image])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy pictures of each class' colour."""
    file, noise = tmp_path_factory.mktemp("images") / "images.zip", np.random.default_rng(0)
    with zipfile.ZipFile(file, "w") as archive:
        for name, colour in COLOURS.items():
            for number in range(12):
                shade = np.array(colour[::-1]) + noise.normal(0, 12, 3) + noise.normal(0, 20, (HEIGHT, WIDTH, 3))
                pixels = shade.clip(0, 255).astype(np.uint8)
                archive.writestr(f"{name}/{number}.png", cv2.imencode(".png", pixels)[1].tobytes())
    return file


def run(source: Path, tmp_path: Path, *flags: object) -> None:
    call(prepare.main, source, "--name", "m", "--repository", tmp_path / "models", "--crop-ratio", 1, *flags)


@pytest.mark.parametrize(("layout", "order", "name"), WAYS)
def test_labelled_images_show_what_a_model_wants(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, order: str, name: str
) -> None:
    ov.save_model(nearest(layout, Normalization.usual(order, name)), tmp_path / "model.xml", compress_to_fp16=False)
    with pytest.raises(ScriptError, match=r"--data.*--channel-order.*--normalize"):
        run(tmp_path / "model.xml", tmp_path)
    wanted = Normalization.usual(order, name)
    for wrong in (each for each in USUAL if not Normalization.usual(order, each).is_like(wanted)):
        with pytest.raises(ScriptError, match=f"--channel-order {order} --normalize {name} is right more often"):
            run(tmp_path / "model.xml", tmp_path, "--data", images, "--channel-order", order, "--normalize", wrong)
    assert versions(tmp_path / "models", "m") == []
    capsys.readouterr()
    run(tmp_path / "model.xml", tmp_path, "--data", images)
    model, printed = find(tmp_path / "models", "m"), capsys.readouterr().out
    assert model.metadata["source"]["layout"] == layout
    assert f"size: {HEIGHT} x {WIDTH} pixels, as the model fixes it" in printed
    assert f"layout: {layout}, by its input" in printed
    assert f"--channel-order {order} --normalize {name}, the best on 84 images" in printed
    assert f"coal, lake, meadow, ..., named by the folders of {images}, in alphabetical order" in printed
    # What it answers as it is served: as right as outside, where every image's nearest colour is its own.
    dataset = Dataset.open(images)
    [outputs] = predict([model], dataset)
    assert top1(outputs, truth(dataset, model)) > 95


@pytest.mark.parametrize("more", [(), ("--channel-order", "RGB", "--normalize", "unit")])
def test_a_mean_is_never_left_out_silently(images: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    ov.save_model(nearest("NCHW", Normalization.usual("RGB", "unit")), tmp_path / "model.xml")
    values = ("--mean", 0.4, 0.4, 0.4, "--std", 0.2, 0.2, 0.2)
    with pytest.raises(ScriptError, match="the order that --channel-order names, and without --normalize"):
        run(tmp_path / "model.xml", tmp_path, "--data", images, *values, *more)


def test_images_that_do_not_decide_are_said_to(images: Path, tmp_path: Path) -> None:
    """A model of brightness alone is the same for both orders of channels; one that guesses has no right one."""
    grey = {name: (level,) * 3 for name, level in (("dark", 40), ("light", 210))}
    with zipfile.ZipFile(tmp_path / "few.zip", "w") as archive:
        for name, colour in grey.items():
            pixels = np.full((HEIGHT, WIDTH, 3), colour, np.uint8)
            archive.writestr(f"{name}/0.png", cv2.imencode(".png", pixels)[1].tobytes())
    image = opset13.parameter([-1, HEIGHT, WIDTH, 3], ov.Type.f32)
    mean = opset13.reduce_mean(image, np.array([1, 2]), keep_dims=False)
    shown = np.array([[-1, 1], [-1, 1], [-1, 1]], np.float32)
    ov.save_model(ov.Model([opset13.matmul(mean, shown, False, False)], [image]), tmp_path / "model.xml")
    with pytest.raises(ScriptError, match="none of the usual normalizations is better than guessing"):
        run(tmp_path / "model.xml", tmp_path, "--data", tmp_path / "few.zip")
    ov.save_model(nearest("NHWC", Normalization.usual("RGB", "unit")), tmp_path / "colours.xml", compress_to_fp16=False)
    with zipfile.ZipFile(images) as archive, zipfile.ZipFile(tmp_path / "greys.zip", "w") as some:
        for entry in archive.namelist():
            # Of colours alone a few images, so that both orders of channels are about as right.
            if entry.split("/")[0] in {"coal", "slate", "snow"} or entry.endswith("/0.png"):
                some.writestr(entry, archive.read(entry))
    # Both orders are right about nearly all of these, and the model's own makes most of them likelier.
    run(tmp_path / "colours.xml", tmp_path, "--data", tmp_path / "greys.zip")
    assert find(tmp_path / "models", "m").metadata["source"]["channel_order"] == "RGB"


def test_an_image_or_two_do_not_decide(images: Path, tmp_path: Path) -> None:
    ov.save_model(nearest("NHWC", Normalization.usual("BGR", "none")), tmp_path / "model.xml", compress_to_fp16=False)
    with zipfile.ZipFile(images) as archive, zipfile.ZipFile(tmp_path / "snow.zip", "w") as some:
        for entry in [name for name in archive.namelist() if name.startswith("snow/")]:
            some.writestr(entry, archive.read(entry))
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS))
    with pytest.raises(ScriptError, match=r"these 12 images don't tell --channel-order"):
        run(tmp_path / "model.xml", tmp_path, "--data", tmp_path / "snow.zip", "--labels", tmp_path / "labels.txt")


def test_names_of_other_classes_are_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(f"class {number}" for number in range(7)))
    ov.save_model(nearest("NCHW", Normalization.usual("RGB", "unit")), tmp_path / "model.xml")
    with pytest.raises(ScriptError, match="has the class 'coal'"):
        run(tmp_path / "model.xml", tmp_path, "--data", images, "--labels", tmp_path / "labels.txt")


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ([-1, 3, 64, 64], "NCHW"), ([1, 3, -1, -1], "NCHW"), ([-1, 64, 64, 3], "NHWC"), ([-1, -1, -1, 3], "NHWC"),
        ([1, 3, 5, 4], "NCHW"),
    ],
)  # fmt: skip
def test_a_shape_says_its_layout(shape: list[int], layout: str) -> None:
    assert layout_of(ov.PartialShape(shape)) == layout
    with pytest.raises(ModelError, match=f"it fits --layout {layout}"):
        layout_of(ov.PartialShape(shape), "NHWC" if layout == "NCHW" else "NCHW")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([-1, -1, 64, -1], r"read as NCHW \(images 64 pixels high and \? wide\).*NHWC \(images \? pixels high and 64"),
        ([-1, 3, 224, 3], "neither"), ([-1, 1, 28, 28], "neither"), ([-1, 64, 64, 4], "neither"),
        ([-1, 64, 3, 64], "neither"), ([-1, 64, 64], "a member takes images"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_say_is_refused(shape: list[int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        layout_of(ov.PartialShape(shape))


def test_a_bare_model_that_does_not_say_is_not_served(tmp_path: Path) -> None:
    """A folder with nothing but a model, of one channel: it was taken for 28 channels of 28 times 1 pixels."""
    image = opset13.parameter([-1, 1, 28, 28], ov.Type.f32)
    (tmp_path / "m" / "1").mkdir(parents=True)
    flat = opset13.reduce_mean(image, np.array([2]), keep_dims=False)
    rows = opset13.reshape(flat, np.array([0, 28]), True)
    ov.save_model(ov.Model([rows], [image]), tmp_path / "m" / "1" / "model.xml")
    with pytest.raises(ModelError, match=r"model 'm': the model takes .* neither"):
        load(find(tmp_path, "m"))

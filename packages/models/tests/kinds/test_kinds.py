"""Every kind of model and folder that strangers bring is right once it is accepted, or refused until an option decides.

docs/reference/kinds.md shows the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import openvino as ov
import pytest
import yaml
from openvino import opset13 as ops
from PIL import Image

from deployments.repository.errors import ModelError
from deployments.repository.repository import find, versions
from ensemble_models.dataset import Dataset, truth
from ensemble_models.prediction import predict
from ensemble_models.prepare import __main__ as prepare
from ensemble_models.prepare.source import Normalization
from ensemble_models.statistics import top1
from packages.models.tests.formats.make import FILTERS, HERE, MATRIX
from packages.models.tests.kinds import make
from packages.models.tests.kinds.make import COLOURS, SIZE, TWO, classifier, second_of_two
from packages.models.tests.tiny import add, call, constant
from scripts.errors import DatasetError, ScriptError
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "kinds.md"
RIGHT = "right"
usual = Normalization.usual
NAMES = [str(number) for number in range(11)]
MIXED = ["Cat", "ant", "bee", "Dog", "eel"]
# Some differ by their saturation only, which a fixed scale does not keep as a picture's own does.
HUES = {
    "brick": (120, 100, 100), "lake": (30, 90, 200), "meadow": (60, 160, 50), "mist": (200, 195, 190),
    "poppy": (210, 40, 40), "steel": (95, 105, 125),
}  # fmt: skip
# Far from grey in other directions.
FAR = {name: COLOURS[name] for name in ("coal", "lake", "meadow", "poppy", "sand")}
ACCENTS = {normalize("NFC", f"é {name}"): colour for name, colour in COLOURS.items()}
DECOMPOSED = {normalize("NFD", name): colour for name, colour in ACCENTS.items()}
OWN = Normalization("RGB", (0.6, 0.5, 0.35), (0.12, 0.12, 0.12))


def shuffled(colours: Mapping[str, Any]) -> dict[str, Any]:
    return {name: colours[name] for name in np.random.default_rng(3).permutation(list(colours)).tolist()}


@dataclass(frozen=True)
class Kind:
    """A kind of model or folder.

    Attributes:
        what: the kind, as the table names it.
        network: writes the model to a file.
        verdict: `right`, or the option or the change that decides after a refusal.
        refused: what the refusal says.
        decided: the options that decide, if options do.
        colours: of the classes, by the names of the folders.
        draw: draws the images.
        data: the zip file or folder of images, and what formats they have.
        flags: options that a user gives for other reasons.
        before: prepares the repository and other files.
    """

    what: str
    network: Callable[[Path], None]
    verdict: str = RIGHT
    refused: str = ""
    decided: tuple[Any, ...] = ()
    colours: Mapping[str, Any] = field(default_factory=lambda: COLOURS)
    draw: Callable[..., Any] = make.pictures
    data: tuple[str, tuple[str, ...]] = ("images", (".png",))
    flags: tuple[Any, ...] = ()
    before: Callable[[Path], None] = lambda tmp_path: None
    file: str = "model.xml"


def labels(*names: str) -> Callable[[Path], None]:
    return lambda tmp_path: (tmp_path / "mine.txt").write_text("\n".join(names) + "\n") and None


def in_yaml(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"nc": len(COLOURS), "names": dict(enumerate(COLOURS))}))


def two_files(tmp_path: Path) -> None:
    labels(*shuffled(COLOURS))(tmp_path)
    (tmp_path / "sorted.txt").write_text("\n".join(COLOURS))


def truncated(file: Path) -> None:
    make.linear_onnx(file, COLOURS, usual("RGB", "unit"))
    file.write_bytes(file.read_bytes()[:200])


def other_member(tmp_path: Path) -> None:
    add(tmp_path / "models", "other", constant([1 / 7] * 7, SIZE), "FP16", tuple(shuffled(COLOURS)))


def with_two_outputs(file: Path) -> None:
    network = classifier()
    extra = ops.result(network.get_results()[0].input_value(0).get_node().input_value(0))
    network.add_results([extra])
    for output, name in zip(network.outputs, ("logits", "features"), strict=True):
        output.get_tensor().set_names({name})
    ov.save_model(network, file)


def writes(content: bytes) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(content) and None


def answered(draw: int = 200) -> dict[str, list[Image.Image]]:
    """Random pictures in the folder of the class that the float classifier of `formats/` answers, by NumPy."""
    rgb = np.random.default_rng(1).integers(0, 256, (3 * draw, 8, 8, 3)).astype(np.uint8)
    rgb[::2] = np.random.default_rng(2).integers(0, 256, (len(rgb[::2]), 1, 1, 3))
    windows = np.lib.stride_tricks.sliding_window_view(rgb / 255, (3, 3), axis=(1, 2))[:, ::2, ::2]
    scores = np.maximum(np.einsum("nyxcij,ijco->nyxo", windows, FILTERS), 0).mean((1, 2)) @ MATRIX
    first, second = np.sort(scores, axis=1)[:, -1], np.sort(scores, axis=1)[:, -2]
    sure = first - second > 0.1
    return {
        str(label): [Image.fromarray(image) for image in rgb[sure & (scores.argmax(1) == label)]] for label in range(3)
    }


def halved(colours: np.ndarray) -> np.ndarray:
    """The mean colour of `make.wide` in a whole picture: 20 of 48 columns."""
    return 20 / 48 * colours + 28 / 48 * 128


def by_itself(colours: np.ndarray) -> np.ndarray:
    """The mean colour of `make.pictures` in pictures that are each standardized by themselves, times 255."""
    return 255 * (colours - colours.mean(1, keepdims=True)) / np.sqrt(colours.var(1, keepdims=True) + 20**2)


def tflite(name: str) -> dict[str, Any]:
    file = (HERE / f"{name}.tflite").read_bytes()
    return {
        "network": writes(file),
        "file": "model.tflite",
        "draw": lambda _: answered(),
        "flags": ("--normalize", "none", "--labels", "mine.txt"),
        "before": labels(*"012"),
    }


def trained(*given: Any, **more: Any) -> Callable[[Path], None]:
    return lambda file: ov.save_model(classifier(*given, **more), file, compress_to_fp16=False)


TRAINED = trained()


def saved(made: Callable[[], ov.Model]) -> Callable[[Path], None]:
    return lambda file: ov.save_model(made(), file, compress_to_fp16=False)


def train_and_val(colours: Mapping[str, Any]) -> dict[str, list[Image.Image]]:
    drawn = make.pictures(colours).items()
    return {f"{part}/{name}": images for part in ("train", "val") for name, images in drawn}


MANY = partial(make.pictures, count=40)

KINDS = [
    Kind("PyTorch's export: NCHW, RGB, ImageNet's normalization, logits", lambda file: make.linear_onnx(file, COLOURS, usual("RGB", "imagenet")), file="model.onnx"),  # noqa: E501
    Kind("Keras: NHWC, pixels from 0 to 1, softmax inside", trained(way=usual("RGB", "unit"), layout="NHWC", head=make.softmax)),  # noqa: E501
    Kind("Keras' MobileNet, Inception: pixels from -1 to 1", trained(way=usual("RGB", "symmetric"), layout="NHWC"), draw=MANY),  # noqa: E501
    Kind("Keras' ResNet50, VGG16; Caffe: BGR less the mean, undivided", trained(way=usual("BGR", "caffe"), layout="NHWC")),  # noqa: E501
    Kind("the same in the order RGB", trained(way=usual("RGB", "caffe"))),
    Kind("normalization inside: pixels from 0 to 255, RGB", trained(way=usual("RGB", "none"), layout="NHWC")),
    Kind("OpenCV's: pixels from 0 to 255, BGR", trained(way=usual("BGR", "none"))),
    Kind("CLIP's normalization", trained(way=usual("RGB", "clip"))),
    Kind("CIFAR's normalization", trained(way=usual("RGB", "cifar"))),
    Kind("ImageNet's mean, undivided: pixels from -0.5 to 0.6", trained(way=usual("RGB", "imagenet-mean"))),
    Kind("ImageNet's standard deviation without a mean", trained(way=usual("BGR", "imagenet-std"), layout="NHWC")),
    Kind("pixels from -0.5 to 0.5", trained(way=usual("RGB", "centered"))),
    Kind("pixels from -128 to 128", trained(way=usual("BGR", "centered-255"))),
    Kind("each image less its own mean, divided by its own standard deviation", trained(HUES, seen=by_itself), "the model with this step inside", "each image is less its own mean|better than guessing", colours=HUES, draw=MANY),  # noqa: E501
    Kind("another mean and standard deviation, of the training's images", trained(way=OWN), "`--channel-order`, `--mean`, `--std`", "another normalization than the usual ones is clearly better|none of the usual normalizations|don't tell", ("--channel-order", "RGB", "--mean", *OWN.mean, "--std", *OWN.std)),  # noqa: E501
    Kind("flags of another normalization than the training's", trained(way=usual("RGB", "imagenet")), "the right `--normalize`, or none", "is right more often than what the flags say|better than guessing", ("--normalize", "imagenet"), flags=("--channel-order", "RGB", "--normalize", "none")),  # noqa: E501
    Kind("classes in string order: 0 1 10 2 (torchvision)", trained(make.spread(sorted(NAMES))), colours=make.spread(sorted(NAMES))),  # noqa: E501
    Kind("classes in natural order: 0 1 2 ... 10 (timm)", trained(make.spread(NAMES)), colours=make.spread(NAMES)),
    Kind("classes sorted without case: ant bee Cat Dog", trained(make.spread(sorted(MIXED, key=str.lower))), colours=make.spread(sorted(MIXED, key=str.lower))),  # noqa: E501
    Kind("classes in the order of another member", trained(shuffled(COLOURS)), before=other_member),
    Kind("classes in any other order", trained(shuffled(COLOURS)), "`--labels`, or `--class-order images`", r"output 0 answers '\w+' and not 'coal'.*--class-order images", ("--class-order", "images")),  # noqa: E501
    Kind("a file of labels in another order than the outputs", TRAINED, "the right `--labels`, or none", "more often than the given one|another order than the given one", ("--labels", "sorted.txt"), flags=("--labels", "mine.txt"), before=two_files),  # noqa: E501
    Kind("a file of labels with an index or a WordNet id before each name", TRAINED, flags=("--labels", "mine.txt"), before=labels(*(f"{index} {name}" for index, name in enumerate(COLOURS)))),  # noqa: E501
    Kind("a file of labels in YAML", TRAINED, flags=("--labels", "mine.yaml"), before=in_yaml),
    Kind("log-softmax", trained(head=lambda scores: ops.log_softmax(scores, 1))),
    Kind("a softmax of other operations", trained(head=lambda scores: ops.divide(ops.exp(scores), ops.reduce_sum(ops.exp(scores), np.array([1]), True)))),  # noqa: E501
    Kind("sigmoid, each class by itself", trained(head=make.sigmoid)),
    Kind("a sigmoid of other operations", trained(head=make.sigmoid_by_hand), "`--head`", "all from 0 to 1, and do not sum to 1.*--head", ("--head", "sigmoid")),  # noqa: E501
    Kind("percentages", trained(head=make.percent)),
    Kind("ReLU behind the last layer", trained(head=make.relu), "`--head`", "no score is negative.*--head", ("--head", "logits")),  # noqa: E501
    Kind("whole numbers from 0 to 255, of a softmax", trained(head=make.levels)),
    Kind("softplus behind the last layer", trained(head=ops.softplus), "`--head`", "say by --head", ("--head", "shares")),  # noqa: E501
    Kind("tanh behind the last layer", trained(head=ops.tanh), "the model without it, or `--head`", "by a Tanh.*--head logits", ("--head", "logits")),  # noqa: E501
    Kind("the index of a class in place of scores (argmax)", trained(head=make.argmax), "the model without its last operation", "the likeliest classes .* export it without that operation"),  # noqa: E501
    Kind("the name of a class in place of scores", partial(make.names_onnx, colours=COLOURS), "the model without its last operations", "takes or answers texts", file="model.onnx"),  # noqa: E501
    Kind("cosines, from -1 to 1: right, with a warning to calibrate", saved(lambda: make.cosines(FAR)), colours=FAR),
    Kind("cosines of the classes in any other order", saved(lambda: make.cosines(shuffled(FAR))), "`--labels`, or `--class-order images`", "--class-order images", ("--class-order", "images"), colours=FAR),  # noqa: E501
    Kind("batch normalization by the images of a batch", trained(head=make.by_batch), "an export by `model.eval()`", "differ by the images beside it"),  # noqa: E501
    Kind("dropout that stays after training", trained(head=make.dropout), "an export by `model.eval()`", "from call to call"),  # noqa: E501
    Kind("one output for two classes: sigmoid, [N,1]", trained(TWO, head=second_of_two(ops.sigmoid)), colours=TWO, draw=MANY),  # noqa: E501
    Kind("one output for two classes: sigmoid, [N]", trained(TWO, head=second_of_two(ops.sigmoid, flat=True)), colours=TWO, draw=MANY),  # noqa: E501
    Kind("one output for two classes, for the first one", trained(dict(reversed(TWO.items())), head=second_of_two(ops.sigmoid)), "`--labels`, or `--class-order images`", "--class-order images", ("--class-order", "images"), colours=TWO, draw=MANY),  # noqa: E501
    Kind("one output for two classes: a logit", trained(TWO, head=second_of_two(make.logits)), "`--head`", "one output.*--head", ("--head", "logits"), colours=TWO, draw=MANY),  # noqa: E501
    Kind("fully quantized TFLite: bytes in and out, softmax", **tflite("bytes")),
    Kind("fully quantized TFLite: int8 in and out, logits", **tflite("int8_logits")),
    Kind("fully quantized TFLite: int8 in and out, sigmoid", **tflite("int8_sigmoid")),
    Kind("several outputs", with_two_outputs, "`--output`", "outputs .*--output logits", ("--output", "logits")),
    Kind("scores [N,classes,1,1]", trained(head=make.pooled)),
    Kind("a fixed batch of 1", trained(rows=1)),
    Kind("a fixed batch of 4", trained(rows=4)),
    Kind("FP16 input", trained(element=ov.Type.f16)),
    Kind("FP64 input", trained(element=ov.Type.f64)),
    Kind("uint8 input", trained(way=usual("RGB", "none"), element=ov.Type.u8, layout="NHWC"), flags=("--normalize", "none")),  # noqa: E501
    Kind("any size of images", trained(size=(-1, -1)), "`--size`", "--size HEIGHT WIDTH", ("--size", *SIZE)),
    Kind("images of one channel", trained(channels=1), "a member takes three channels", "a member takes images of three channels|neither"),  # noqa: E501
    Kind("images stretched to the model's size", trained(size=(24, 24), seen=halved), draw=make.wide),
    Kind("images fitted into the model's size, with black borders", trained(size=(24, 24), seen=lambda colours: halved(colours) / 2), draw=make.wide),  # noqa: E501
    Kind("images as .webp, .bmp, .tif and .jpg", TRAINED, data=("images", (".webp", ".bmp", ".tif", ".jpg"))),
    Kind("a zip file that Windows made, with backslashes", TRAINED, data=("images.zip", (".png",))),
    Kind("folders that macOS named, with accents as own characters", trained(ACCENTS), colours=DECOMPOSED, flags=("--labels", "mine.txt"), before=labels(*ACCENTS)),  # noqa: E501
    Kind("a folder with `train/` and `val/`", TRAINED, "`--data FOLDER/val`", "several sets of images, train, val: name one", ("--data", "images/val"), draw=train_and_val),  # noqa: E501
    Kind("images of other classes than the file of labels has", TRAINED, "the right `--labels`, or other images", "has the class 'coal', which is none", flags=("--labels", "mine.txt"), before=labels(*"abcdefg")),  # noqa: E501
    Kind("fewer folders than classes", trained({**COLOURS, "unseen": (128, 0, 128)}), "`--labels`", "has 7 classes, and the model 8; name the model's by --labels", ("--labels", "mine.txt"), before=labels(*COLOURS, "unseen")),  # noqa: E501
    Kind("top-1 below the expected one", trained({**COLOURS, "meadow": (61, 160, 52), "poppy": (250, 200, 140)}), "another `--expected-top1`", r"below the expected 99\.9 %", flags=("--expected-top1", 99.9)),  # noqa: E501
    Kind("a Git LFS pointer", writes(b"version https://git-lfs.github.com/spec/v1\n"), "`git lfs pull`", "a Git LFS pointer", file="model.onnx"),  # noqa: E501
    Kind("a web page in place of the model", writes(b"<!DOCTYPE html>"), "the file itself", "a web page", file="model.onnx"),  # noqa: E501
    Kind("a truncated ONNX file", truncated, "the whole file", "damaged or truncated", file="model.onnx"),
    Kind("PyTorch's own file", writes(b"\x80\x02}q\x00."), "an export to ONNX", "PyTorch's.*torch.onnx.export", file="model.onnx"),  # noqa: E501
]  # fmt: skip


def prepared(kind: Kind, tmp_path: Path, *more: object) -> float:
    """Prepare it, and return its top-1, percent, as it is served."""
    data = tmp_path / kind.data[0]
    files = (".txt", ".yaml", "/val")
    flags = [tmp_path / each if str(each).endswith(files) else each for each in (*kind.flags, *more)]
    call(prepare.main, tmp_path / kind.file, "--name", "m", "--repository", tmp_path / "models", "--data", data, *flags)
    model = find(tmp_path / "models", "m")
    dataset = Dataset.open(data / "val" if (data / "val").is_dir() else data)
    [outputs] = predict([model], dataset)
    np.testing.assert_allclose(outputs.sum(1), 1, atol=1e-3)
    return top1(outputs, truth(dataset, model))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.what.replace(" ", "-")[:40])
def test_what_is_accepted_is_right(kind: Kind, tmp_path: Path) -> None:
    kind.network(tmp_path / kind.file)
    make.write(tmp_path / kind.data[0], kind.draw(kind.colours), kind.data[1])
    kind.before(tmp_path)
    if kind.verdict == RIGHT:
        assert prepared(kind, tmp_path) > 94
        return
    with pytest.raises((ScriptError, ModelError, DatasetError), match=kind.refused):
        prepared(kind, tmp_path)
    assert versions(tmp_path / "models", "m") == []
    if kind.decided:
        assert prepared(kind, tmp_path, *kind.decided) > 94


def test_the_page_has_every_kind() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for kind in KINDS:
        verdict = "right" if kind.verdict == RIGHT else f"refused: {kind.verdict}"
        assert f"| {kind.what} | {verdict} |" in page, f"{PAGE} lacks: | {kind.what} | {verdict} |"

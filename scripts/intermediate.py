"""OpenVINO's intermediate representation: the ensemble's signature baked into a model, and versions written whole."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

import openvino as ov
from openvino.passes import ConstantFolding, Manager
from openvino.preprocess import ColorFormat, PrePostProcessor

from deployments.predictor import drop_output_quantization, with_softmax
from graph.config import LONGEST_NAME, NAME
from models.repository import METADATA, Model, find, versions, write_metadata
from scripts.errors import ModelError

Color = Literal["RGB", "BGR"]
Layout = Literal["NCHW", "NHWC"]

# What may stand between a model's softmax and its output without changing the values.
TRANSPARENT = frozenset({"Convert", "Reshape", "Squeeze"})

PRECISIONS = ("FP32", "FP16", "INT8")
MODEL = "model.xml"
WEIGHTS = "model.bin"


def bake(
    network: ov.Model,
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    scale: Sequence[float],
    channel_order: Color,
    layout: Layout,
) -> ov.Model:
    """Give a classifier the ensemble's signature, with its preprocessing inside.

    Args:
        network: one image input of four dimensions, one output [N,classes]; consumed, don't use it afterwards.
        size: height and width that it shall take, pixels.
        mean: subtracted, by channel in the model's own order, in units of pixels (0 to 255).
        scale: divided by after that, likewise; the standard deviation. ImageNet's 0 to 1 values times 255.
        channel_order: the order in which the model wants its channels.
        layout: the layout in which the model wants its images.

    Returns:
        uint8 BGR [N,height,width,3] named `image` in, float32 [N,classes] named `probabilities`, rows that sum to 1,
        out; N is free unless the model's inside fixes it.

    Raises:
        ModelError: other inputs or outputs, or the model doesn't run at that size.
    """
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise ModelError(
            f"the model has {len(network.inputs)} inputs and {len(network.outputs)} outputs; a member has one image "
            "input and one output of class scores: export it for inference, without auxiliary heads"
        )
    rank = network.input(0).get_partial_shape().rank
    if rank.is_static and rank.get_length() != 4:
        raise ModelError(f"the model takes {network.input(0).get_partial_shape()}; a member takes images, [N,H,W,3]")
    _reshape(network, size, layout)
    drop_output_quantization(network)
    if not _ends_in_softmax(network):
        network = with_softmax(network)
    adapter = PrePostProcessor(network)
    image = adapter.input()
    image.tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(ColorFormat.BGR)
    image.model().set_layout(ov.Layout(layout))
    steps = image.preprocess().convert_element_type(ov.Type.f32)
    # Colour first: mean and scale are in the model's own order of channels.
    if channel_order == "RGB":
        steps.convert_color(ColorFormat.RGB)
    if any(mean):
        steps.mean(list(mean))
    if any(value != 1 for value in scale):
        steps.scale(list(scale))
    adapter.output().tensor().set_element_type(ov.Type.f32)
    baked = adapter.build()
    baked.input(0).get_tensor().set_names({"image"})
    baked.output(0).get_tensor().set_names({"probabilities"})
    return baked


def fold(network: ov.Model) -> None:
    """Compute what is constant, in place.

    Reshaping makes shapes inside depend on weights (OpenVINO's smart reshape). Unless that is folded before NNCF works,
    the float weight stays beside the int8 one: 4 MB of ResNet-50's 30.
    """
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(network)


def static_size(network: ov.Model, layout: Layout) -> tuple[int, int] | None:
    """Height and width that a model fixes, pixels; None if it leaves them open."""
    shape = network.input(0).get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return None
    height, width = (shape[layout.index(axis)] for axis in "HW")
    return None if height.is_dynamic or width.is_dynamic else (height.get_length(), width.get_length())


def input_metadata(size: tuple[int, int], crop_ratio: float) -> dict[str, Any]:
    """The `input` entry of `metadata.json` for what `bake` makes."""
    return {
        "height": size[0],
        "width": size[1],
        "crop_ratio": crop_ratio,
        "layout": "NHWC",
        "color": "BGR",
        "type": "uint8",
    }


def stored_precision(model: Model) -> str:
    """What most of a model's weights are stored in: `FP32`, `FP16`, or `INT8` for 8 bits or fewer.

    Raises:
        ModelError: OpenVINO can't read the model.
    """
    try:
        network = ov.Core().read_model(model.path)
    except RuntimeError as err:
        raise ModelError(f"OpenVINO can't read {model.path}: {err}") from err
    bits: Counter[int] = Counter()
    for node in network.get_ordered_ops():
        if node.get_type_name() == "Constant":
            bits[node.get_output_element_type(0).bitwidth] += prod(node.get_output_shape(0))
    most = bits.most_common(1)[0][0] if bits else 32
    return "INT8" if most <= 8 else "FP16" if most == 16 else "FP32"


def precision(model: Model) -> str:
    """`FP32`, `FP16` or `INT8`: what the metadata says the weights are stored in, else what they are."""
    told = model.metadata.get("precision")
    return told if told in PRECISIONS else stored_precision(model)


def check_name(name: str) -> None:
    """Raise ModelError if a configuration couldn't name such a model."""
    if not re.fullmatch(NAME, name) or len(name) > LONGEST_NAME:
        raise ModelError(f"--name {name!r}: use at most {LONGEST_NAME} letters, digits, dots, dashes and underscores")


def check_replaceable(repository: Path, name: str, version: int) -> None:
    """Raise ModelError if another version was quantized from this one: it would go on with the old weights."""
    for other in versions(repository, name):
        source = find(repository, name, other).metadata.get("source", {})
        if source.get("tool") == "scripts.quantize" and source.get("version") == version:
            raise ModelError(
                f"version {other} of {name!r} was quantized from version {version} and would stay as it is; delete "
                f"{repository / name / str(other)}, and quantize again after replacing"
            )


def check_free(repository: Path, name: str, version: int, hint: str = "choose another name or version") -> None:
    """Raise ModelError if that version exists."""
    if version in versions(repository, name):
        raise ModelError(f"model {name!r} has a version {version} in {repository} already; {hint}")


def write_version(
    network: ov.Model,
    repository: Path,
    name: str,
    version: int | None,
    metadata: dict[str, Any],
    *,
    compress_to_fp16: bool,
    replace: bool = False,
    check: Callable[[Model], dict[str, Any]] | None = None,
) -> Path:
    """Write a version of a model into the repository: wholly or not at all.

    Args:
        network: what `bake` made.
        repository: the root, `<root>/<name>/<version>/`; made if it isn't there.
        name: the model's name.
        version: the version's number; None for the next free one.
        metadata: the content of `metadata.json` besides `name`, `version` and `sha256`.
        compress_to_fp16: store float32 weights as float16.
        replace: whether an existing version gives way.
        check: looks at the written files before they are served. What it returns joins the metadata; if it raises,
            nothing is left behind.

    Returns:
        The version's folder.

    Raises:
        ModelError: the version exists and `replace` is false.
    """
    number = max([0, *versions(repository, name)]) + 1 if version is None else version
    if not replace:
        check_free(repository, name, number)
    target = repository / name / str(number)
    # Beside the target, so that the rename stays on one file system; no decimal name, so that nobody serves it.
    staged = target.with_name(f".{number}.{os.getpid()}.partial")
    content = {"name": name, "version": number, **metadata}
    try:
        staged.mkdir(parents=True)
        ov.save_model(network, staged / MODEL, compress_to_fp16=compress_to_fp16)
        if check is not None:
            content |= check(Model(name, number, staged / MODEL, content))
        write_metadata(staged, content)
        if replace and target.exists():
            _swap(staged, target)
        else:
            staged.rename(target)
    except OSError as err:
        raise ModelError(f"can't write version {number} of {name!r} to {repository}: {err}") from err
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def describe(folder: Path) -> str:
    """A line about a version for the terminal: where it is and the size of its weights."""
    return f"{folder} ({(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB of weights, {METADATA} beside them)"


def _swap(staged: Path, target: Path) -> None:
    retired = staged.with_suffix(".retired")
    target.rename(retired)
    try:
        staged.rename(target)
    except OSError:
        retired.rename(target)
        raise
    shutil.rmtree(retired)


def _reshape(network: ov.Model, size: tuple[int, int], layout: Layout) -> None:
    """Set the image size and free N; a model whose inside fixes N keeps its own."""
    own = network.input(0).get_partial_shape()
    extent = {"N": -1, "C": 3, "H": size[0], "W": size[1]}
    _, *image = (extent[axis] for axis in layout)
    rows = 1 if own.rank.is_dynamic or own[0].is_dynamic else own[0].get_length()
    # With N open, a reshape inside to [-1, ...] hides a wrong size and a constant N: ask with one image more first.
    try:
        network.reshape([rows + 1, *image])
        if _answers(network, rows + 1):
            network.reshape([-1, *image])
            return
    except RuntimeError:
        pass
    try:
        network.reshape([rows, *image])
    except RuntimeError as err:
        raise ModelError(
            f"the model takes {own}, which can't become {[rows, *image]} ({layout}); check --size and --layout"
        ) from err
    if not _answers(network, rows):
        raise ModelError(
            f"the model answers {network.output(0).get_partial_shape()} to {rows} images; a member answers "
            "[N, classes]: export a classifier with its pooling and its last layer"
        )


def _answers(network: ov.Model, rows: int) -> bool:
    """Whether the output is [rows,classes]."""
    answer = network.output(0).get_partial_shape()
    return bool(answer.is_static and len(answer) == 2 and answer[0].get_length() == rows)


def _ends_in_softmax(network: ov.Model) -> bool:
    node = network.get_results()[0].input_value(0).get_node()
    while node.get_type_name() in TRANSPARENT:
        node = node.input_value(0).get_node()
    return str(node.get_type_name()) == "Softmax"

"""The forms in which exporters describe a model, each a table of fields and what its own code adds to them."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from deployments.repository.errors import ModelError
from ensemble_models.exporters.facts import (
    WHITE,
    Description,
    Fact,
    framing,
    interpolation,
    numbers,
    scaling,
    share,
    sides,
)
from ensemble_models.exporters.names import names_of

CLASSIFY = "classify"
MULTI_LABEL = "multi_label_classification"
OF_ITS_OWN = "so that each class has a probability of its own, and a member's classes exclude each other"
# As OpenVINO and Python write it.
YES = ("YES", "True", "true", "1")
RESIZE_TYPES = {"standard": "stretch", "crop": "crop", "fit_to_window_letterbox": "letterbox"}
# What a processor of transformers does and `processor` reads; pixels are RGB in any case.
STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_flip_channel_order", "do_convert_rgb"}
# From this side on ConvNeXT's processor stretches; LeViT's resizes to 256 of 224 pixels.
STRETCHED, LEVIT = 384, 256 / 224

PRESET = "ImageClassification"
# `torch.nn.Sequential` numbers its steps.
STEP = re.compile(r"^\s*(?:\(\d+\): )?(\w+)\((.*)\)\s*$", re.MULTILINE)
FIELD = re.compile(r"(\w+)=(?:tensor\()?(\[[^\]]*\]|\([^)]*\)|[\w.+-]+)")
# Steps that change no pixel, and those that make pixels from 0 to 1 of pixels from 0 to 255.
PLAIN = frozenset({"Compose", "PILToTensor", "ToImage", "RGB", "ToPureTensor", "MaybePILToTensor"})
SCALING = frozenset({"ToTensor", "MaybeToTensor", "ConvertImageDtype", "ToDtype"})


def read(said: Description) -> Iterator[Fact]:
    """Read the facts of a description, by the fields that tell its form; none of an unknown form.

    Raises:
        ModelError: a field has a value that the exporter does not write, or the model is no classifier.
    """
    try:
        yield from _read(said)
    except ModelError:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError) as err:
        raise ModelError(f"{said.where} is not understood: {err}") from err


def _read(said: Description) -> Iterator[Fact]:
    if said.get("task") is not None and said.get("names") is not None:
        yield from ultralytics(said)
    if said.get("pretrained_cfg") is not None:
        yield from timm(said)
    elif said.get("id2label") is not None:
        yield from transformers(said)
    if any(said.get(key) is not None for key in ("do_resize", "do_normalize", "image_mean")):
        yield from processor(said)
    if (info := said.get("model_info")) is not None:
        yield from model_api(Description(f"{said.where}: model_info", info))


def ultralytics(said: Description) -> Iterator[Fact]:
    """Read `metadata.yaml` or the properties of an ONNX file, and add how its `classify_transforms` takes images."""
    if said.get("task") != CLASSIFY:
        raise ModelError(f"{said.where}: the model's task is {said.get('task')}; a member classifies images")
    yield from said.facts({"labels": ("names", names_of)})
    where = f"{said.where}: task {CLASSIFY}, for which Ultralytics has one way"
    height, width = sides(said.get("imgsz", 224))
    yield from framing(height if height == width else (height, width), (height, width), where)
    yield from scaling(1 / WHITE, (0.0,) * 3, (1.0,) * 3, where)
    yield from (Fact("order", "RGB", where), Fact("interpolation", "bilinear", where))


def timm(said: Description) -> Iterator[Fact]:
    """Read timm's `config.json`."""
    trained = Description(f"{said.where}: pretrained_cfg", said.get("pretrained_cfg"))
    yield from said.facts({"labels": ("label_names", names_of)})
    yield from trained.facts(
        {"mean": ("mean", numbers), "std": ("std", numbers), "interpolation": ("interpolation", interpolation)}
    )
    height, width = sides(trained.get("input_size", [3, 224, 224]))
    resized = int(height // trained.get("crop_pct", 0.875)), int(width // trained.get("crop_pct", 0.875))
    mode, where = trained.get("crop_mode", "center"), f"{trained.where}: input_size, crop_pct, crop_mode"
    if mode == "border" and resized == (height, width):
        yield from (Fact("size", resized, where), Fact("resize", "letterbox", where))
        yield Fact("border", tuple(round(WHITE * value) for value in numbers(trained.get("mean"))[::-1]), where)
    else:
        yield from framing(resized if mode != "center" else min(resized), (height, width), where)
    yield from _of_pytorch(f"{said.where}: as timm's models take images")


def transformers(said: Description) -> Iterator[Fact]:
    """Read the `config.json` of a classifier of Hugging Face's transformers."""
    names = names_of(said.get("id2label"))
    if names != tuple(f"LABEL_{index}" for index in range(len(names))):
        yield Fact("labels", names, f"{said.where}: id2label")
    if said.get("problem_type") == MULTI_LABEL:
        yield Fact("head", None, f"{said.where}: problem_type {MULTI_LABEL}, {OF_ITS_OWN}")


def processor(said: Description) -> Iterator[Fact]:
    """Read the `preprocessor_config.json` of transformers: resize, crop, rescale, normalize, flip, in this order."""
    kind = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "")
    yield from said.facts({"interpolation": ("resample", interpolation)})
    is_cropped = said.get("do_center_crop", False)
    cropped = sides(said.get("crop_size")) if is_cropped else None
    resized = _resized(said, kind, is_cropped) if said.get("do_resize", True) else None
    if isinstance(resized, int) and said.get("crop_pct") and "ConvNext" in kind:
        shorter = int(resized / said.get("crop_pct"))
        resized, cropped = (shorter, (resized,) * 2) if resized < STRETCHED else ((resized,) * 2, None)
    elif isinstance(resized, int) and said.get("crop_pct"):
        resized = int(resized / said.get("crop_pct"))
    yield from framing(resized, cropped, f"{said.where}: size, crop_size")
    for name in said.fields:
        if name.startswith("do_") and said.get(name) is True and name not in STEPS:
            yield Fact("resize", None, f"{said.where}: {name} is a step that is not read")
    factor = said.get("rescale_factor", 1 / WHITE) if said.get("do_rescale", True) else 1.0
    has_mean = said.get("do_normalize", said.get("image_mean") is not None)
    if has_mean and (said.get("image_mean") is None or said.get("image_std") is None):
        yield Fact("mean", None, f"{said.where} normalizes, but does not have image_mean and image_std")
    mean, std = (
        numbers(said.get(key, plain)) if has_mean else (plain,) * 3
        for key, plain in (("image_mean", 0.0), ("image_std", 1.0))
    )
    # EfficientNet's processor divides by the standard deviation twice.
    if "EfficientNet" in kind and said.get("include_top", True):
        std = numbers([value * value for value in std])
    is_flipped = bool(said.get("do_flip_channel_order", False))
    step = -1 if is_flipped else 1
    where = f"{said.where}: rescale_factor, image_mean, image_std"
    yield from scaling(factor, mean[::step], std[::step], where, 1.0 if said.get("rescale_offset", False) else 0.0)
    if is_flipped:
        yield Fact("order", "BGR", f"{said.where}: do_flip_channel_order")
    yield from _of_pytorch(f"{said.where}: as transformers' models take images", *(["order"] if is_flipped else []))


def model_api(said: Description) -> Iterator[Fact]:
    """Read `rt_info/model_info` of OpenVINO's Model API, whose mean and scale hold for pixels from 0 to 255.

    `ensemble export` adds `class_names`, `color`, `crop_ratio` and `interpolation`, for which Model API has no field.
    """
    if any(str(said.get(key, "NO")) in YES for key in ("embedded_processing", "hierarchical")):
        raise ModelError(f"{said.where}: embedded_processing and hierarchical are not read; export the model without")
    labels = ("class_names", names_of) if said.get("class_names") is not None else ("labels", _words)
    yield from said.facts({"labels": labels, "order": ("color", str), "crop_ratio": ("crop_ratio", share)})
    if said.get("intensity_mode", "none") != "none":
        yield Fact("mean", None, f"{said.where}: intensity_mode {said.get('intensity_mode')} is not read")
    else:
        mean, std = (numbers(said.get(key, plain)) for key, plain in (("mean_values", 0.0), ("scale_values", 1.0)))
        yield from scaling(1.0, mean, std, f"{said.where}: mean_values, scale_values")
    if str(said.get("reverse_input_channels")) in YES:
        yield Fact("order", "RGB", f"{said.where}: reverse_input_channels, of OpenCV's BGR")
    elif said.get("color") is None:
        # Its callers give images as OpenCV reads them, or red first.
        yield Fact("order", None, f"{said.where} does not say in which order its images come")
    if (resize := RESIZE_TYPES.get(str(said.get("resize_type")))) is not None:
        yield Fact("resize", resize, f"{said.where}: resize_type")
    elif said.get("resize_type") is not None:
        yield Fact("resize", None, f"{said.where}: resize_type {said.get('resize_type')}, which the server can't")
    if resize == "letterbox":
        yield Fact("border", (int(float(said.get("pad_value", 0))),) * 3, f"{said.where}: pad_value")
    filters = ("interpolation", interpolation) if said.get("interpolation") else ("interpolation_mode", interpolation)
    yield from said.facts({"interpolation": filters})
    if str(said.get("multilabel")) in YES:
        yield Fact("head", None, f"{said.where}: multilabel, {OF_ITS_OWN}")


def _words(written: Any) -> tuple[str, ...]:
    """Read the labels of Model API, in whose names an underscore stands for a space."""
    return tuple(written.split() if isinstance(written, str) else written)


def _resized(said: Description, kind: str, is_cropped: bool) -> int | tuple[int, int] | None:
    """Read what a processor resizes to: the shorter side, or height and width; a number alone is either."""
    size = said.get("size")
    shorter = size.get("shortest_edge") if isinstance(size, dict) else size
    if isinstance(size, dict) and shorter is None:
        return sides(size) if "height" in size else None
    if isinstance(size, int) and not is_cropped and not said.get("crop_pct"):
        return (size, size)
    return None if shorter is None else int(int(shorter) * (LEVIT if "Levit" in kind else 1))


def _of_pytorch(where: str, *but: str) -> Iterator[Fact]:
    """State what holds for every model of a library for PyTorch."""
    facts = {"order": "RGB", "layout": "NCHW"}
    yield from (Fact(name, value, where) for name, value in facts.items() if name not in but)


def transforms(text: str, where: str) -> Iterator[Fact]:
    """Read the transforms of torchvision or timm as `str(transforms)` in Python prints them.

    Raises:
        ModelError: a field of a step has a value that its library does not print.
    """
    is_preset = text.lstrip().startswith(PRESET)
    steps = [(PRESET, text)] if is_preset else STEP.findall(text)
    if not {name for name, _ in steps} - PLAIN:
        raise ModelError(f"{where} has no step on a line of its own, as Python prints `print(transforms)`")
    resized: Any = None
    cropped: Any = None
    factor, mean, std = 1.0, (0.0,) * 3, (1.0,) * 3
    for name, written in steps:
        said = Description(f"{where}: {name}", {key: _value(value) for key, value in FIELD.findall(written)})
        if name in {PRESET, "Resize"}:
            resized = said.get("resize_size", said.get("size"))
            yield from said.facts({"interpolation": ("interpolation", interpolation)})
            if said.get("max_size") is not None:
                yield Fact("resize", None, f"{where}: max_size of Resize is not read")
        if name in {PRESET, "CenterCrop"}:
            cropped = said.get("crop_size", said.get("size"))
        if name in {PRESET, "Normalize"}:
            mean, std = numbers(said.get("mean")), numbers(said.get("std"))
        if name == PRESET or (name in SCALING and said.get("scale", True)):
            factor = 1 / WHITE
        if name not in {PRESET, "Resize", "CenterCrop", "Normalize", *SCALING, *PLAIN}:
            yield from (Fact(fact, None, f"{where}: {name} is a step that is not read") for fact in ("resize", "mean"))
    shorter = resized[0] if isinstance(resized, list | tuple) and len(resized) == 1 else resized
    exact = tuple(shorter) if isinstance(shorter, list | tuple) else shorter
    side = cropped * 2 if isinstance(cropped, list | tuple) and len(cropped) == 1 else cropped
    yield from framing(exact, tuple(side) if isinstance(side, list | tuple) else side and (side, side), where)
    yield from scaling(factor, mean, std, where)
    yield Fact("order", "RGB", f"{where}: as Pillow reads images")
    yield Fact("layout", "NCHW", f"{where}: as PyTorch's models take images")


def _value(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return written

"""Reads `transforms.txt`, the transforms of torchvision or timm as `str(transforms)` in Python prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from deployments.repository.errors import ModelError
from ensemble_models.exporters.facts import WHITE, Description, Fact, framing, interpolation, numbers, scaling

PRESET = "ImageClassification"
# `torch.nn.Sequential` numbers its steps.
STEP = re.compile(r"^\s*(?:\(\d+\): )?(\w+)\((.*)\)\s*$", re.MULTILINE)
FIELD = re.compile(r"(\w+)=(?:tensor\()?(\[[^\]]*\]|\([^)]*\)|[\w.+-]+)")
# Steps that change no pixel, and those that make pixels from 0 to 1 of pixels from 0 to 255.
PLAIN = frozenset({"Compose", "PILToTensor", "ToImage", "RGB", "ToPureTensor", "MaybePILToTensor"})
SCALING = frozenset({"ToTensor", "MaybeToTensor", "ConvertImageDtype", "ToDtype"})


def transforms(text: str, where: str) -> Iterator[Fact]:
    """Read the facts that printed transforms state.

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

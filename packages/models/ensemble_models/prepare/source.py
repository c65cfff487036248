"""The source that a model is prepared from: a network, and how it takes images."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from deployments.repository.content import no_model
from deployments.repository.errors import ModelError, reason
from deployments.repository.repository import sha256
from ensemble_models.baking import Color
from ensemble_models.exporters.facts import Stated
from ensemble_models.exporters.folder import facts, model_in

WHITE = 255
# By the name that --normalize has for it: mean and standard deviation of pixels scaled to 0 to 1, red first.
USUAL: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "unit": ((0.0,) * 3, (1.0,) * 3),
    "symmetric": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1 / WHITE,) * 3),
    # Keras' ResNet and VGG, and Caffe: values from 0 to 255 less the mean, usually in the order BGR.
    "caffe": ((123.68 / WHITE, 116.779 / WHITE, 103.939 / WHITE), (1 / WHITE,) * 3),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
}
# Half of a usual one: ImageNet's mean without its deviation, or the reverse; the middle of the range, undivided.
RARE: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet-mean": ((0.485, 0.456, 0.406), (1.0,) * 3),
    "imagenet-std": ((0.0,) * 3, (0.229, 0.224, 0.225)),
    "centered": ((0.5,) * 3, (1.0,) * 3),
    "centered-255": ((0.5,) * 3, (1 / WHITE,) * 3),
}
BY_NAME = {**USUAL, **RARE}
# Each image less its own mean, divided by its own standard deviation: no fixed mean and std, so no choice of an option.
PER_IMAGE = "per image"
ORDERS: tuple[Color, ...] = ("RGB", "BGR")
READABLE = (".onnx", ".tflite", ".pdmodel", ".xml", ".pb")
# The share of the shorter side that ImageNet's evaluation keeps: 224 of 256 pixels.
CROP_RATIO = 0.875
UNSAID = "its exporter does not say in which order the model takes the colours"


@dataclass(frozen=True)
class Normalization:
    """How a model takes its pixels.

    Attributes:
        order: of the channels.
        mean: subtracted from pixels scaled to 0 to 1, by channel in that order.
        std: divided by after that, likewise.
        name: what --normalize calls mean and std; empty for others.
    """

    order: Color
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = ""

    @classmethod
    def usual(cls, order: Color, name: str) -> Normalization:
        """Make a normalization that has a name."""
        mean, std = BY_NAME[name]
        step = 1 if order == "RGB" else -1
        return cls(order, mean[::step], std[::step], name)

    @classmethod
    def named(cls, order: Color, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
        """Make a normalization, with the name of a usual one if it is one."""
        for each in (cls.usual(order, name) for name in BY_NAME):
            if np.allclose((each.mean, each.std), (mean, std), rtol=1e-4, atol=1e-6):
                return each
        return cls(order, mean, std)

    @property
    def values(self) -> str:
        """The flags for mean and std."""
        if self.name:
            return f"--normalize {self.name}"
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"--mean {mean} --std {std}"

    def is_like(self, other: Normalization) -> bool:
        """Check whether another normalization makes nearly the same pixels, as CLIP's and ImageNet's."""
        # Caffe's mean and the middle of the range are 0.094 apart.
        apart = max(abs(mine - theirs) for mine, theirs in zip(self.mean, other.mean, strict=True))
        ratios = [mine / theirs for mine, theirs in zip(self.std, other.std, strict=True)]
        return self.order == other.order and apart <= 0.1 and all(0.8 <= each <= 1.25 for each in ratios)

    @property
    def flags(self) -> str:
        """What stands for it on the command line."""
        return f"--channel-order {self.order} {self.values}"


def usual(order: Color | None = None, name: str | None = None) -> list[Normalization]:
    """List the usual normalizations, of an order and of a name if these are given."""
    orders, names = ORDERS if order is None else (order,), USUAL if name is None else (name,)
    return [Normalization.usual(each, called) for called in names for each in orders]


def rare(order: Color) -> list[Normalization]:
    """List the normalizations that are tried where a usual one is often wrong."""
    own = Normalization(order, (0.0,) * 3, (1.0,) * 3, PER_IMAGE)
    return [*(Normalization.usual(order, name) for name in RARE), own]


@dataclass(frozen=True)
class Source:
    """A network, and facts about its input.

    Attributes:
        network: one image input, one output of class scores.
        origin: where it is from, for `metadata.json`.
        stated: the facts that its exporter or its library states; see `Fact`.
    """

    network: ov.Model
    origin: dict[str, Any]
    stated: Stated

    def get(self, fact: str) -> Any:
        """Return a fact; None if it is unknown, or if only the network has it."""
        return self.stated.values.get(fact)

    @property
    def normalization(self) -> Normalization | None:
        """The normalization of its training; without a stated order mean and std hold in the model's own."""
        mean, std = self.get("mean"), self.get("std")
        return Normalization.named(self.get("order") or "RGB", mean, std) if mean and std else None

    @property
    def open(self) -> dict[str, str]:
        """Sentences, by a fact's name, on why only an option or images can decide the fact."""
        is_said = self.get("order") or self.normalization is None
        return {**({} if is_said else {"order": UNSAID}), **self.stated.open}


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what libraries in C++ write to standard error, as TensorFlow's readers do while OpenVINO tries formats."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def read(given: Path) -> Source:
    """Read the network of a file or folder that OpenVINO reads, and what its exporter wrote about it.

    Raises:
        ModelError: it can't be read; the message says what to do instead.
    """
    if not given.exists():
        raise ModelError(f"there is no {given}")
    path = model_in(given)
    if path.is_file() and (what := no_model(path)):
        raise ModelError(f"{path} is {what}")
    try:
        with quiet():
            network = ov.Core().read_model(path) if path.suffix == ".xml" else ov.convert_model(path)
    # convert_model raises its own error type, and plain Exception for a format that it doesn't know.
    except Exception as err:
        what = "it is damaged or truncated" if path.suffix in READABLE else "its format is unknown"
        known = ", ".join(READABLE)
        raise ModelError(f"OpenVINO can't read {path}: {what}; it reads {known}, SavedModel ({reason(err)})") from err
    digest = {"sha256": sha256(path)} if path.is_file() else {}
    return Source(network, {"file": path.name, **digest}, Stated.of(facts(path, network)))

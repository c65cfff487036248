"""How a model takes its pixels normalized, and which of the usual ways labelled images show it to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing
from deployments.repository.baking import Color
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import hits
from scripts.interval import Interval
from scripts.prepare.trial import Trial
from scripts.results import Table

Predict = Callable[[Pixels], NDArray[np.float32]]

WHITE = 255
# Two ways with the same answers on fewer images may differ on more than 6 % of others (rule of three).
ENOUGH = 50
# By the name that --normalize has for it: mean and standard deviation of pixels scaled to 0 to 1, red first.
USUAL: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "unit": ((0.0,) * 3, (1.0,) * 3),
    "symmetric": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1 / WHITE,) * 3),
}
ORDERS: tuple[Color, ...] = ("RGB", "BGR")


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
        """Make one of the usual normalizations."""
        mean, std = USUAL[name]
        step = 1 if order == "RGB" else -1
        return cls(order, mean[::step], std[::step], name)

    @property
    def values(self) -> str:
        """The flags for mean and std."""
        if self.name:
            return f"--normalize {self.name}"
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"--mean {mean} --std {std}"

    @property
    def flags(self) -> str:
        """What stands for it on the command line."""
        return f"--channel-order {self.order} {self.values}"


def usual(order: Color | None = None, name: str | None = None) -> list[Normalization]:
    """List the usual normalizations, of an order and of a name if these are given."""
    orders, names = ORDERS if order is None else (order,), USUAL if name is None else (name,)
    return [Normalization.usual(each, called) for called in names for each in orders]


def choose(
    allowed: Sequence[Normalization], bake: Callable[[Normalization], ov.Model], trial: Trial, way: Preprocessing
) -> Normalization:
    """Choose, of those that are allowed, the one with which a model is right most often.

    Args:
        allowed: what fits the flags.
        bake: makes the network with one of them inside, uint8 BGR [N,H,W,3] to float32 [N,classes].
        trial: the labelled images.
        way: how they get the model's size.

    Raises:
        ScriptError: the images don't decide, none is better than guessing, or a usual one is better than those allowed.
    """
    every = [*allowed, *(each for each in usual() if each not in allowed)]
    outputs = trial.race([trial_of(bake(each), trial, way) for each in every])
    labels = trial.labels
    right, classes = [hits(output, labels[: len(output)]) for output in outputs], outputs[0].shape[1]
    # First those that were tried on all images.
    rows = sorted(range(len(every)), key=lambda row: (-len(right[row]), -right[row].mean()))
    shares = [Interval.share(each > 0) for each in right]
    lines = [(every[row].order, every[row].values, str(shares[row]), str(len(right[row]))) for row in rows]
    Table(("channels", "normalization", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    if shares[rows[0]].low <= 100 / classes:
        raise ScriptError(
            f"none of the usual normalizations is better than guessing one of {classes} classes; say by --labels which "
            "class each output is, and by --mean, --std and --channel-order what the model was trained with"
        )
    kept = next(row for row in rows if row < len(allowed))
    for row in rows:
        both = min(len(right[row]), len(right[kept]))
        difference = Interval.paired(right[row][:both] - right[kept][:both])
        if row >= len(allowed) and difference.low > 0:
            raise ScriptError(
                f"{every[row].flags} is right more often than what the flags say, by {difference.mean:.1f} points: "
                "pass it, or leave out --data to keep what the flags say"
            )
        same = len(labels) >= ENOUGH and np.array_equal(outputs[row].argmax(1), outputs[kept].argmax(1))
        if row != kept and row < len(allowed) and difference.high >= 0 and not same:
            raise ScriptError(
                f"these {len(labels)} images don't tell {every[kept].flags} from {every[row].flags}; pass the flags of "
                "one of them, or more images by --data"
            )
    return every[kept]


def trial_of(network: ov.Model, trial: Trial, way: Preprocessing) -> Callable[[int, int], NDArray[np.float32]]:
    """Return what predicts the images of a trial from a position to another one, computed as it is served."""
    run = runner(network)
    return lambda begin, end: run(trial.pixels(way, begin, end))


def predict(network: ov.Model, pixels: Pixels) -> NDArray[np.float32]:
    """Predict the probabilities of every image in float32, float32 [images,classes]."""
    return runner(network, {"INFERENCE_PRECISION_HINT": "f32"})(pixels)


def runner(network: ov.Model, options: Mapping[str, str] = MappingProxyType({})) -> Predict:
    """Compile a network, uint8 [N,H,W,3] to float32 [N,classes], into a function of any number of images."""
    compiled = ov.Core().compile_model(network, "CPU", dict(options))
    fixed = network.input(0).get_partial_shape()[0]
    rows = 16 if fixed.is_dynamic else fixed.get_length()

    def run(pixels: Pixels) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(pixels), rows):
            some = pixels[start : start + rows]
            # A model that fixes its batch gets the last image again where images are lacking.
            filled = (
                some if fixed.is_dynamic else np.concatenate([some, np.repeat(some[-1:], rows - len(some), axis=0)])
            )
            parts.append(compiled(filled)[0][: len(some)].copy())
        return np.concatenate(parts)

    return run

"""What travels: pixels as another server wants them, and the scores that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Images, Pixels, Probabilities
from deployments.contract.preprocessing import Size
from deployments.remote.failures import Misfit, Nonsense
from deployments.remote.settings import RemoteConfig

# The names of the Open Inference Protocol.
FLOATS: dict[str, np.dtype[Any]] = {"FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
PIXELS: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("u1"), **FLOATS}
BYTES = "BYTES"
# How far from 1 the sum of probabilities may be: half precision over a thousand classes, and int8, come to this.
SIMPLEX_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a server describes it; -1 stands for any extent, and for what it doesn't say."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """What a server tells of its model.

    Attributes:
        inputs: what it takes.
        outputs: what it gives.
        version: of the model; empty if it doesn't say.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is asked.

    Attributes:
        input: the tensor that it takes.
        output: the name of the one that it gives.
        layout: of pixels.
        size: of pixels, where the server fixes it.
        classes: their number, where the server tells it.
        rows: how many images it takes at once, if that is fixed.
        version: of the model.
    """

    input: Tensor
    output: str
    layout: str
    size: Size | None
    classes: int | None
    rows: int | None
    version: str

    @property
    def as_sent(self) -> bool:
        """Whether it takes images as they were sent."""
        return self.input.datatype == BYTES


def fit(told: Described, config: RemoteConfig) -> Fit:
    """How a member asks a model; raises Misfit if it can't."""
    source = _named("input", told.inputs, config.input, {*PIXELS, BYTES})
    target = _named("output", told.outputs, config.output, set(FLOATS))
    shape = source.shape
    rows = shape[0] if shape and shape[0] > 0 else None
    classes = next((extent for extent in shape_without_ones(target.shape)[1:]), -1)
    if source.datatype == BYTES:
        if config.as_sent is False:
            raise Misfit(f"the input {source.name!r} takes bytes, but `as_sent` is false")
        return Fit(source, target.name, "", None, classes if classes > 0 else None, rows, told.version)
    if config.as_sent:
        raise Misfit(f"`as_sent` is set, but the input {source.name!r} takes {source.datatype}")
    if source.datatype == "UINT8" and (any(config.mean) or set(config.scale) != {1.0}):
        raise Misfit(f"the input {source.name!r} takes pixels as they are, uint8; leave `mean` and `scale` out")
    if len(shape) not in {0, 4}:
        raise Misfit(f"the input {source.name!r} takes {list(shape)}; a member takes images, four dimensions")
    layout = config.layout or ("NCHW" if len(shape) == 4 and shape[1] == 3 and shape[3] != 3 else "NHWC")
    size: Size | None = None
    if shape:
        height, width, channels = (shape[layout.index(axis)] for axis in "HWC")
        if channels not in {3, -1}:
            raise Misfit(f"the input {source.name!r} takes {list(shape)}, which as {layout} are not three channels")
        size = (height, width) if height > 0 and width > 0 else None
    if size is not None and config.size not in {None, size}:
        raise Misfit(f"`size` is {config.size}, but the server's model takes {size}")
    return Fit(source, target.name, layout, size, classes if classes > 0 else None, rows, told.version)


def _named(what: str, tensors: Sequence[Tensor], name: str | None, datatypes: set[str]) -> Tensor:
    """The tensor of that name; without one, the only one of these types."""
    found = [each for each in tensors if (each.datatype in datatypes if name is None else each.name == name)]
    if len(found) != 1 or found[0].datatype not in datatypes:
        known = [f"{each.name} ({each.datatype} {list(each.shape)})" for each in tensors]
        which = f"no {what} {name!r}" if name is not None else f"{len(found)} possible {what}s"
        raise Misfit(f"the server's model has {which} of {sorted(datatypes)} among {known}; say which by `{what}`")
    return found[0]


def shape_without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of at least two dimensions without the ones at its end, as [N,1000,1,1] has them."""
    end = len(shape)
    while end > 2 and shape[end - 1] == 1:
        end -= 1
    return tuple(shape[:end])


def packed(pixels: Pixels, how: Fit, config: RemoteConfig) -> NDArray[Any]:
    """Pixels, uint8 [N,H,W,3] BGR, as a model wants them, contiguous."""
    values: NDArray[Any] = pixels if config.color == "BGR" else pixels[..., ::-1]
    if how.input.datatype != "UINT8":
        values = values.astype(np.float32)
        if any(config.mean):
            values -= np.asarray(config.mean, np.float32)
        if set(config.scale) != {1.0}:
            values /= np.asarray(config.scale, np.float32)
        values = values.astype(PIXELS[how.input.datatype], copy=False)
    return np.ascontiguousarray(values if how.layout == "NHWC" else values.transpose(0, 3, 1, 2))


def parts(images: Images, most: int | None) -> list[Images]:
    """The images in parts of at most so many."""
    return [images[first : first + most] for first in range(0, len(images), most)] if most else [images]


def probabilities(answer: NDArray[Any], rows: int, classes: int, config: RemoteConfig) -> Probabilities:
    """A model's answer as float32 [N,C]; a row that is no distribution is one of NaN.

    Raises:
        Nonsense: the answer has another shape.
    """
    shape = shape_without_ones(answer.shape)
    if shape != (rows, classes):
        raise Nonsense(f"it answered {list(answer.shape)} where [{rows}, {classes}] was expected")
    scores = answer.reshape(shape).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if config.scores == "logits":
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        good = np.isfinite(scores).all(axis=1) & (scores.min(axis=1) >= -SIMPLEX_TOLERANCE)
        good &= np.abs(scores.sum(axis=1) - 1) <= SIMPLEX_TOLERANCE
    result = np.clip(scores, 0, 1).astype(np.float32)
    result[~good] = np.nan
    return result


def highest(versions: Sequence[str]) -> str:
    """The highest of a model's versions, which are numbers or names; empty if there is none."""
    return max(
        versions, key=lambda version: (version.isdecimal(), int(version) if version.isdecimal() else 0), default=""
    )

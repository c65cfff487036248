"""The tensors of a model that was not prepared for this application, and how pixels and scores are converted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deployments.contract.payload import Images, Pixels, Probabilities
from deployments.contract.preprocessing import Size
from deployments.contract.settings import Schema

# Data types by the names of the Open Inference Protocol.
FLOATS: dict[str, np.dtype[Any]] = {"FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
PIXELS: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("u1"), **FLOATS}
BYTES = "BYTES"
# How far from 1 the sum of probabilities may be: half precision over a thousand classes, and int8, come to this.
SIMPLEX_TOLERANCE = 1e-2

TensorName = Annotated[str, Field(min_length=1, max_length=256)]
Channel = Annotated[float, Field(allow_inf_nan=False)]
Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class IncompatibleModel(ValueError):
    """The model does not take or give what this member needs."""


class TensorSettings(Schema):
    """The tensors of a member's model: the form of its pixels and of its scores."""

    input: TensorName | None = Field(None, description="the input tensor; default: the only one")
    output: TensorName | None = Field(None, description="the output tensor; default: the only one of floating point")
    scores: Literal["probabilities", "logits"] = Field("probabilities", description="what the output contains")
    layout: Literal["NHWC", "NCHW"] | None = Field(
        None, description="layout of the pixels; default: by the input's shape"
    )
    color: Literal["BGR", "RGB"] = Field("BGR", description="order of the channels")
    mean: tuple[Channel, Channel, Channel] = Field(
        (0.0, 0.0, 0.0), description="subtracted from the pixels (0 to 255), by channel in the order of `color`"
    )
    scale: tuple[Deviation, Deviation, Deviation] = Field(
        (1.0, 1.0, 1.0), description="divides the pixels after `mean`, by channel in the order of `color`"
    )


class Tensor(msgspec.Struct, frozen=True):
    """A tensor's name, data type and shape, in which -1 stands for an extent that is free or unknown."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Content(NamedTuple):
    """A tensor of a request; of `BYTES` it holds encoded images, else an array of the shape."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Images

    @property
    def raw(self) -> bytes:
        """The array's own bytes, little-endian; or each encoded image behind its length, 4 bytes."""
        if isinstance(self.values, np.ndarray):
            return self.values.tobytes()
        return b"".join(part for each in self.values for part in (len(each).to_bytes(4, "little"), each))


class ModelMetadata(NamedTuple):
    """A model's inputs, outputs and version; the version is empty if it is unknown."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """The tensors by which a model takes images and gives scores.

    Attributes:
        input: the tensor that takes the images.
        output: the name of the tensor that gives the scores.
        layout: of the pixels; empty where the model takes encoded images.
        size: height and width of the pixels, where the model fixes it.
        classes: the number of classes, where the metadata has it.
        batch_size: how many images the model takes at once, if that is fixed.
        version: of the model; empty if it is unknown.
    """

    input: Tensor
    output: str
    layout: str
    size: Size | None
    classes: int | None
    batch_size: int | None
    version: str

    @property
    def as_sent(self) -> bool:
        """Return whether the model takes encoded images."""
        return self.input.datatype == BYTES

    def content(self, images: Images) -> Content:
        """Return the input of a request; for encoded images, some servers have a second dimension."""
        ones = [1] * (len(self.input.shape) - 1)
        shape = images.shape if isinstance(images, np.ndarray) else [len(images), *ones]
        return Content(self.input.name, self.input.datatype, shape, images)

    def check(self, as_sent: bool | None, size: Size | None, classes: int | None) -> None:
        """Raise IncompatibleModel unless the model takes such images and has so many classes; None stands for any."""
        if as_sent not in {None, self.as_sent}:
            takes = "images as they were sent" if self.as_sent else "pixels"
            raise IncompatibleModel(
                f"its model takes {takes}; set `as_sent: {str(self.as_sent).lower()}`, or start after the server"
            )
        if size is not None and self.size not in {None, size}:
            raise IncompatibleModel(
                f"its model takes {self.size}, but gets {size}; set its `size`, or start after the server"
            )
        if classes is not None and self.classes not in {None, classes}:
            raise IncompatibleModel(f"its model has {self.classes} classes, but {classes} labels are expected")


def bind(metadata: ModelMetadata, settings: TensorSettings) -> Binding:
    """Find the tensors by which a member's model is called.

    Raises:
        IncompatibleModel: there are no such tensors, or more than one choice.
    """
    source = _find("input", metadata.inputs, settings.input, {*PIXELS, BYTES})
    target = _find("output", metadata.outputs, settings.output, set(FLOATS))
    classes = next(iter(without_trailing_ones(target.shape)[1:]), -1)
    batch_size = source.shape[0] if source.shape and source.shape[0] > 0 else None
    layout, size = ("", None) if source.datatype == BYTES else _pixel_form(source, settings)
    number = classes if classes > 0 else None
    return Binding(source, target.name, layout, size, number, batch_size, metadata.version)


def _pixel_form(source: Tensor, settings: TensorSettings) -> tuple[str, Size | None]:
    """Find the layout of an input of pixels, and the size of the pixels if the model fixes it."""
    shape = source.shape
    if source.datatype == "UINT8" and (any(settings.mean) or set(settings.scale) != {1.0}):
        raise IncompatibleModel(f"the input {source.name!r} takes pixels as uint8; remove `mean` and `scale`")
    if len(shape) not in {0, 4}:
        raise IncompatibleModel(f"the input {source.name!r} takes {list(shape)}; images have four dimensions")
    if not shape:
        return settings.layout or "NHWC", None
    possible = [layout for layout in ("NHWC", "NCHW") if shape[layout.index("C")] == 3]
    if settings.layout is None and len(possible) != 1:
        raise IncompatibleModel(f"the input {source.name!r} takes {list(shape)}; set `layout` to NHWC or NCHW")
    layout = settings.layout or possible[0]
    height, width, channels = (shape[layout.index(axis)] for axis in "HWC")
    if channels not in {3, -1}:
        raise IncompatibleModel(
            f"the input {source.name!r} takes {list(shape)}, which read as {layout} does not have three channels"
        )
    return layout, (height, width) if height > 0 and width > 0 else None


def _find(what: str, tensors: Sequence[Tensor], name: str | None, datatypes: set[str]) -> Tensor:
    """Find the tensor of a name; without a name, the only one of these data types."""
    found = [each for each in tensors if (each.datatype in datatypes if name is None else each.name == name)]
    if len(found) != 1 or found[0].datatype not in datatypes:
        known = [f"{each.name} ({each.datatype} {list(each.shape)})" for each in tensors]
        which = f"no {what} {name!r}" if name is not None else f"{len(found)} possible {what}s"
        raise IncompatibleModel(
            f"the model has {which} of {sorted(datatypes)} among {known}; name the right one by `{what}`"
        )
    return found[0]


def without_trailing_ones(shape: Iterable[int]) -> tuple[int, ...]:
    """Remove the ones behind the second dimension of a shape, as in [N,1000,1,1]."""
    result = list(shape)
    while len(result) > 2 and result[-1] == 1:
        result.pop()
    return tuple(result)


def convert_pixels(pixels: Pixels, binding: Binding, settings: TensorSettings) -> NDArray[Any]:
    """Convert pixels, uint8 [N,H,W,3] BGR, to the contiguous array that a model takes."""
    values: NDArray[Any] = pixels if settings.color == "BGR" else pixels[..., ::-1]
    if binding.input.datatype != "UINT8":
        values = values.astype(np.float32)
        if any(settings.mean):
            values -= np.asarray(settings.mean, np.float32)
        if set(settings.scale) != {1.0}:
            values /= np.asarray(settings.scale, np.float32)
        values = values.astype(PIXELS[binding.input.datatype], copy=False)
    return np.ascontiguousarray(values if binding.layout == "NHWC" else values.transpose(0, 3, 1, 2))


def split(images: Images, size: int | None) -> list[Images]:
    """Split images into parts of at most that size."""
    return [images[first : first + size] for first in range(0, len(images), size)] if size else [images]


def pad(images: Images, size: int | None) -> Images:
    """Repeat the last image up to the fixed batch size of a model, if it has one."""
    missing = 0 if size is None else size - len(images)
    if missing <= 0:
        return images
    if isinstance(images, np.ndarray):
        return np.concatenate([images, images[-1:].repeat(missing, axis=0)])
    return [*images, *[images[-1]] * missing]


def probabilities(output: NDArray[Any], rows: int, classes: int, logits: bool) -> Probabilities:
    """Convert a model's output to float32 [N,C]; a row that is no distribution becomes a row of NaN.

    Raises:
        ValueError: the output has another shape.
    """
    shape = without_trailing_ones(output.shape)
    if shape != (rows, classes):
        raise ValueError(f"the output has the shape {list(output.shape)}; [{rows}, {classes}] was expected")
    scores = output.reshape(shape).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if logits:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        good = np.isfinite(scores).all(axis=1) & (scores.min(axis=1) >= -SIMPLEX_TOLERANCE)
        good &= np.abs(scores.sum(axis=1) - 1) <= SIMPLEX_TOLERANCE
    result = np.clip(scores, 0, 1).astype(np.float32)
    result[~good] = np.nan
    return result

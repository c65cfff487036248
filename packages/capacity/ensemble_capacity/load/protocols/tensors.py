"""What a model's inputs are filled with: images, their pixels, or random numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.errors import ScriptError

BYTES = "BYTES"


class Input(NamedTuple):
    """An input as a server describes it; -1 is an open extent, and the first one counts images."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """What an input is filled with.

    Attributes:
        datatype: as the Open Inference Protocol calls it.
        shape: with the batch.
        values: encoded images where the datatype is BYTES, else an array of the shape.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[bytes] | NDArray[Any]

    @property
    def raw(self) -> bytes:
        """Its bytes, little-endian; each element of BYTES follows its length."""
        if isinstance(self.values, np.ndarray):
            return self.values.tobytes()
        return b"".join(part for each in self.values for part in (len(each).to_bytes(4, "little"), each))


def filled(inputs: Iterable[Input], images: Sequence[bytes], shapes: dict[str, tuple[int, ...]]) -> list[Tensor]:
    """The inputs of a request; `shapes` are of those whose extents are open, without the batch, by name.

    Raises:
        ScriptError: a shape or a datatype is not known, or the model takes another number of images.
    """
    return [_filled(*each, images, shapes.get(each.name)) for each in inputs]


def _filled(
    name: str, datatype: str, shape: tuple[int, ...], images: Sequence[bytes], given: tuple[int, ...] | None
) -> Tensor:
    count = len(images)
    first, rest = shape[:1], given if given is not None else shape[1:]
    if first and first[0] not in {-1, count}:
        raise ScriptError(f"--batch {count}: the model's input {name!r} takes {first[0]} at a time")
    if datatype == BYTES:
        # Some servers have a second dimension of 1.
        return Tensor(name, BYTES, (count, *(1 for _ in rest)), images)
    if min(rest, default=1) < 1:
        open_extents = ",".join(str(extent) for extent in rest)
        raise ScriptError(f"--shape: the server leaves extents of {name!r} open; give --shape {name}:{open_extents}")
    try:
        dtype = np.dtype("float16" if datatype == "FP16" else datatype.lower().replace("fp", "float"))
    except TypeError as err:
        raise ScriptError(f"--model: its input {name!r} is of {datatype}, which nothing here can be made of") from err
    if len(rest) == 3 and 3 in (rest[0], rest[2]):
        values = np.stack([_pixels(image, rest) for image in images]).astype(dtype)
    else:
        values = np.random.default_rng(0).integers(0, 2, (count, *rest)).astype(dtype)
    return Tensor(name, datatype, (count, *rest), values)


def _pixels(image: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """An image's pixels, from 0 to 255, in a shape of three channels that come first or last."""
    import cv2

    last = shape[2] == 3
    height, width = shape[:2] if last else shape[1:]
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ScriptError("--images: one of them can't be decoded")
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8)
    return np.ascontiguousarray(resized if last else resized.transpose(2, 0, 1))

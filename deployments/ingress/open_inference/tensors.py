"""Tensors of the Open Inference Protocol, from and to bytes and JSON."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.contract.answer import PROBABILITY_DIGITS
from deployments.contract.errors import InvalidParameter

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
# The kinds of numpy's arrays of JSON's numbers that a tensor of a kind accepts.
FROM_JSON = {"b": "b", "i": "i", "u": "iu", "f": "iuf"}
MOST_DIMENSIONS = 8
# Of an element of BYTES, before the element.
LENGTH_BYTES = 4
# The most elements that come one by one: to make Python's numbers of more would hold the event loop up.
MOST_NUMBERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: `data` is a list of bytes for BYTES, else an array of the shape."""

    name: str
    datatype: str
    shape: list[int]
    data: Any


def from_raw(name: str, datatype: str, shape: Sequence[Any], raw: bytes | memoryview, most: int) -> Tensor:
    """Read a tensor from its bytes, little-endian; of BYTES read at most one element more than `most`.

    Raises:
        InvalidParameter: the bytes are not what the shape says, or the datatype is unknown.
    """
    if datatype == "BYTES":
        return Tensor(name, datatype, list(shape), split(raw, most))
    dtype, count = _dtype(name, datatype), _count(name, shape)
    if len(raw) != count * dtype.itemsize:
        raise InvalidParameter(
            f"the tensor {name!r} of {datatype} and shape {list(shape)} has {count * dtype.itemsize} bytes; "
            f"{len(raw)} came"
        )
    try:
        return Tensor(name, datatype, list(shape), np.frombuffer(raw, dtype).reshape(list(shape)))
    # Of no elements, in extents whose product NumPy can't count.
    except ValueError as err:
        raise InvalidParameter(f"the tensor {name!r} has the shape {list(shape)}: {err}") from err


def from_list(name: str, datatype: str, shape: Sequence[Any], data: Sequence[Any]) -> Tensor:
    """Read a tensor from JSON's numbers, nested or flat; raise InvalidParameter as `from_numbers` does."""
    level: Sequence[Any] = data
    for _ in range(MOST_DIMENSIONS):
        kinds = set(map(type, level))
        if kinds != {list} or len(set(map(len, level))) > 1:
            break
        level = list(chain.from_iterable(level))
    # Of a text NumPy makes elements that are as long as the longest one, however many there are.
    if not kinds <= {bool, int, float}:
        raise InvalidParameter(
            f"the tensor {name[:40]!r} is no {datatype[:40]}: its data are numbers, flat or in equal lists"
        )
    return from_numbers(name, datatype, shape, level)


def from_numbers(name: str, datatype: str, shape: Sequence[Any], data: Sequence[Any]) -> Tensor:
    """Make a tensor from a flat sequence of Python's numbers.

    Raises:
        InvalidParameter: they are not what the shape and the datatype say, or more than `MOST_NUMBERS`.
    """
    dtype, count = _dtype(name, datatype), _count(name, shape)
    try:
        if len(data) != count:
            raise ValueError(f"it has {len(data)} elements")
        if count > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS} elements; send them in binary")
        array: NDArray[Any] = np.array(data)
        if array.size and array.dtype.kind not in FROM_JSON[dtype.kind]:
            raise ValueError(f"elements are {array.dtype}")
        if dtype.kind in "iu" and array.size:
            limits = np.iinfo(dtype)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise ValueError(f"elements exceed {limits.min} to {limits.max}")
        return Tensor(name, datatype, list(shape), array.astype(dtype).reshape(list(shape)))
    except (ValueError, OverflowError, TypeError) as err:
        raise InvalidParameter(f"the tensor {name!r} is no {datatype} of shape {list(shape)}: {err}") from err


def to_raw(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor, little-endian; each element of BYTES follows its length."""
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(element)) + element for element in tensor.data)
    return bytes(tensor.data.tobytes())


def to_list(tensor: Tensor) -> list[Any]:
    """Return the elements of a tensor, flat, as JSON has them; elements of BYTES are text."""
    if tensor.datatype == "BYTES":
        return [element.decode() for element in tensor.data]
    elements: list[Any] = tensor.data.ravel().tolist()
    return elements


def split(raw: bytes | memoryview, most: int) -> list[bytes]:
    """Split a raw tensor of BYTES into at most `most` + 1 elements: each follows its length, 4 bytes little-endian."""
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) <= most:
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(raw[at:begin], "little")
        if at > len(raw):
            raise InvalidParameter("the raw tensor ends within an element; each is a 4-byte length and its bytes")
        found.append(bytes(raw[begin:at]))
    return found


def classified(tensor: Tensor, most: int, labels: Sequence[str]) -> Tensor:
    """Return the most probable classes of each row as the classification extension has them: `value:index:label`."""
    order = np.argsort(-tensor.data, axis=1, kind="stable")[:, :most]
    elements = [
        f"{row[index]:.{PROBABILITY_DIGITS}f}:{index}:{labels[index]}".encode()
        for row, best in zip(tensor.data, order.tolist(), strict=True)
        for index in best
    ]
    return Tensor(tensor.name, "BYTES", list(order.shape), elements)


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    if datatype not in DTYPES:
        raise InvalidParameter(f"the tensor {name!r} has an unknown datatype {datatype[:40]!r}")
    dtype: np.dtype[Any] = np.dtype(DTYPES[datatype])
    return dtype


def _count(name: str, shape: Sequence[Any]) -> int:
    if len(shape) > MOST_DIMENSIONS or not all(type(extent) is int and 0 <= extent < 2**31 for extent in shape):
        raise InvalidParameter(f"the tensor {name!r} has no shape {list(shape)[:MOST_DIMENSIONS]}")
    return prod(shape)

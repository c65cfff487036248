"""A batch as bytes: a typed header, and the payload's own memory behind it. Nothing is unpickled.

Frame: kind (1 byte), the header's length (4), the body's length (8), little-endian; the header in MessagePack; the
body, whose buffers each begin at a multiple of 8 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from msgspec.structs import fields
from numpy.typing import NDArray

from deployments.contract import batch as contract
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import by_code
from deployments.contract.item import OF_THE_INGRESS, Item, Note, Step

Kind = Literal[0, 1, 2, 3]
CALL, ANSWER, FAILURE, CLOSING = 0, 1, 2, 3
PREFIX = struct.Struct("<BIQ")
ALIGNMENT = 8
Dtype = Literal["uint8", "int32", "int64", "float16", "float32", "float64"]
Buffer = bytes | memoryview
Body = NDArray[np.uint8]


class Blobs(msgspec.Struct, tag="blobs"):
    """Byte strings."""

    lengths: list[int]


class Array(msgspec.Struct, tag="array"):
    """An array."""

    dtype: Dtype
    shape: list[int]


class Named(msgspec.Struct, tag="named"):
    """Arrays, or byte strings, by name."""

    parts: dict[str, Array | Blobs]


class Answers(msgspec.Struct, tag="answers"):
    """Classifications, and the array of their probabilities."""

    classifications: list[Classification]
    probabilities: Array


# Of an `Item` these travel in another form: the error as its fields, the steps by the position of their notes.
OTHERWISE: Mapping[str, Any] = {"error": dict[str, Any] | None, "steps": list[tuple[int, tuple[str, str] | None]]}
# All others travel as they are, but for those that the ingress' process alone knows.
PLAIN = {field.name: field.type for field in fields(Item) if field.name not in {*OTHERWISE, *OF_THE_INGRESS}}
plain = attrgetter(*PLAIN)
SentItem = msgspec.defstruct("SentItem", [*PLAIN.items(), *OTHERWISE.items()], array_like=True)


class Header(msgspec.Struct, array_like=True):
    """What a frame says of its batch."""

    items: list[SentItem]  # type: ignore[valid-type]
    notes: list[Note]
    payload: Blobs | Array | Named | Answers


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Header)


def _version() -> str:
    """A digest of the code that decides what travels: two versions of it don't talk to each other."""
    files = sorted(Path(contract.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in [*files, Path(__file__)])).hexdigest()[:6]


VERSION = _version()


def encode(batch: Batch[Any]) -> tuple[bytes, list[Buffer]]:
    """A batch's header and the buffers of its body."""
    notes: dict[int, tuple[int, Note]] = {}
    items = [_sent(item, notes) for item in batch.items]
    buffers: list[Buffer] = []
    payload = _described(batch.payload, buffers)
    return ENCODER.encode(Header(items, [note for _, note in notes.values()], payload)), buffers


def decode(header: bytes, body: Body) -> Batch[Any]:
    """The batch of a frame; its arrays lie in `body`.

    Raises:
        ValueError: the header is malformed, or the body is not what it says.
    """
    told = DECODER.decode(header)
    cursor = Cursor(body)
    payload = _payload(told.payload, cursor)
    cursor.end()
    steps: dict[int, Step] = {}
    return Batch(payload, tuple(_item(sent, told.notes, steps) for sent in told.items))


class Cursor:
    """Takes buffers out of a body, one after the other."""

    def __init__(self, body: Body) -> None:
        """Begin at the first byte."""
        self._body, self._offset = body, 0

    def take(self, size: int) -> Body:
        """The next buffer, of so many bytes; raises ValueError if there are not so many."""
        end = self._offset + size
        if size < 0 or end > len(self._body):
            raise ValueError("the body is shorter than its header says")
        part = self._body[self._offset : end]
        self._offset = end + -end % ALIGNMENT
        return part

    def end(self) -> None:
        """Raise ValueError if something is left."""
        if self._offset < len(self._body):
            raise ValueError("the body is longer than its header says")


def padding(buffer: Buffer) -> bytes:
    """What follows a buffer, so that the next one is aligned."""
    return bytes(-len(buffer) % ALIGNMENT)


def _sent(item: Item, notes: dict[int, tuple[int, Note]]) -> msgspec.Struct:
    steps = [(notes.setdefault(id(step.note), (len(notes), step.note))[0], step.failure) for step in item.steps]
    error = None if item.error is None else item.error.to_dict()
    return SentItem(*plain(item), error, steps)


def _item(sent: Any, notes: Sequence[Note], passed: dict[int, Step]) -> Item:
    steps = tuple(
        passed.setdefault(number, Step(notes[number])) if failure is None else Step(notes[number], failure)
        for number, failure in sent.steps
    )
    error = None if sent.error is None else by_code(**sent.error)
    return Item(error=error, steps=steps, **dict(zip(PLAIN, plain(sent), strict=True)))


def _described(payload: Any, buffers: list[Buffer]) -> Blobs | Array | Named | Answers:
    if isinstance(payload, np.ndarray):
        return _array(payload, buffers)
    if isinstance(payload, Mapping):
        parts = {name: _described(part, buffers) for name, part in payload.items()}
        return Named({name: part for name, part in parts.items() if isinstance(part, Array | Blobs)})
    if payload and isinstance(payload[0], Answer):
        probabilities = np.stack([answer.probabilities for answer in payload])
        return Answers([answer.classification for answer in payload], _array(probabilities, buffers))
    buffers.extend(payload)
    return Blobs([len(blob) for blob in payload])


def _array(array: NDArray[Any], buffers: list[Buffer]) -> Array:
    if array.dtype.name not in get_args(Dtype):
        raise TypeError(f"an array of {array.dtype} can't travel by socket; convert it, or set `edges: handle`")
    whole = np.ascontiguousarray(array)
    buffers.append(whole.reshape(-1).view(np.uint8).data)
    return Array(str(whole.dtype), list(whole.shape))  # type: ignore[arg-type]


def _payload(told: Blobs | Array | Named | Answers, cursor: Cursor) -> Any:
    if isinstance(told, Array):
        if min(told.shape, default=0) < 0:
            raise ValueError("an extent is negative")
        dtype = np.dtype(told.dtype)
        size = dtype.itemsize
        for extent in told.shape:
            size *= extent
        return cursor.take(size).view(dtype).reshape(told.shape)
    if isinstance(told, Named):
        return {name: _payload(part, cursor) for name, part in told.parts.items()}
    if isinstance(told, Answers):
        rows = _payload(told.probabilities, cursor)
        return [Answer(*pair) for pair in zip(told.classifications, rows, strict=True)]
    return [cursor.take(length).tobytes() for length in told.lengths]

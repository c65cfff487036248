"""A batch as bytes: a typed header, and the payload's own memory behind it. Nothing is unpickled.

A frame is its kind (1 byte), the header's length (4) and the body's length (8), little-endian; then the header in
MessagePack; then the body, whose buffers each begin at a multiple of 8 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deployments.contract import batch as contract
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, error_by_code
from deployments.contract.item import Item, Note, Step
from ensemble_serving import answer

# A replica answers a ping by a ping, whatever it works on.
CALL, ANSWER, FAILURE, CLOSING, PING = range(5)
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


Payload = Blobs | Array | Named | Answers


class Header(msgspec.Struct, array_like=True):
    """The header of a frame: its batch, without the payload's memory."""

    items: tuple[Item, ...]
    payload: Payload


def _version() -> str:
    """Compute a digest of the code that defines messages: two versions of the code don't connect to each other."""
    folders = (Path(contract.__file__).parent, Path(answer.__file__).parent)
    files = (file for folder in folders for file in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(file.read_bytes() for file in [*files, Path(__file__)])).hexdigest()[:6]


VERSION = _version()
# Of what an item has, only its error is no plain data.
ENCODER = msgspec.msgpack.Encoder(enc_hook=EnsembleError.to_dict)
DECODER = msgspec.msgpack.Decoder(Header, dec_hook=lambda _, error: error_by_code(**error))


def encode(batch: Batch[Any]) -> tuple[bytes, list[Buffer]]:
    """Encode a batch; returns its header and the buffers of its body."""
    buffers: list[Buffer] = []
    payload = _describe(batch.payload, buffers)
    return ENCODER.encode(Header(batch.items, payload)), buffers


def decode(header: bytes, body: Body) -> Batch[Any]:
    """Decode the batch of a frame; the arrays lie in `body`.

    Raises:
        ValueError: the header is malformed, or the body does not fit it.
    """
    found = DECODER.decode(header)
    cursor = Cursor(body)
    payload = _read_payload(found.payload, cursor)
    cursor.end()
    notes: list[Note] = []
    return Batch(payload, tuple(_share_notes(item, notes) for item in found.items))


def _share_notes(item: Item, notes: list[Note]) -> Item:
    """Share an item's notes with other images of its batch, so that each note is counted once."""
    steps = []
    for step in item.steps:
        shared = next((note for note in notes if note == step.note), None)
        if shared is None:
            notes.append(step.note)
        steps.append(step if shared is None else Step(shared, step.failure))
    return replace(item, steps=tuple(steps)) if steps else item


class Cursor:
    """Takes buffers out of a body, one after the other."""

    def __init__(self, body: Body) -> None:
        self._body, self._offset = body, 0

    def take(self, size: int) -> Body:
        """Take the next buffer, of `size` bytes; raises ValueError if the body has fewer."""
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
    """Return the bytes that follow a buffer, so that the next one is aligned."""
    return bytes(-len(buffer) % ALIGNMENT)


def _describe(payload: Any, buffers: list[Buffer]) -> Payload:
    if isinstance(payload, np.ndarray):
        return _describe_array(payload, buffers)
    if isinstance(payload, Mapping):
        parts = {name: _describe(part, buffers) for name, part in payload.items()}
        return Named({name: part for name, part in parts.items() if isinstance(part, Array | Blobs)})
    if payload and isinstance(payload[0], Answer):
        probabilities = np.stack([answer.probabilities for answer in payload])
        return Answers([answer.classification for answer in payload], _describe_array(probabilities, buffers))
    buffers.extend(payload)
    return Blobs([len(blob) for blob in payload])


def _describe_array(array: NDArray[Any], buffers: list[Buffer]) -> Array:
    if array.dtype.name not in get_args(Dtype):
        raise TypeError(f"an array of {array.dtype} can't be sent by a socket; convert it, or set `edges: handle`")
    whole = np.ascontiguousarray(array)
    buffers.append(whole.reshape(-1).view(np.uint8).data)
    return Array(str(whole.dtype), list(whole.shape))  # type: ignore[arg-type]


def _read_payload(described: Payload, cursor: Cursor) -> Any:
    if isinstance(described, Array):
        if min(described.shape, default=0) < 0:
            raise ValueError("an extent is negative")
        dtype = np.dtype(described.dtype)
        size = dtype.itemsize
        for extent in described.shape:
            size *= extent
        return cursor.take(size).view(dtype).reshape(described.shape)
    if isinstance(described, Named):
        return {name: _read_payload(part, cursor) for name, part in described.parts.items()}
    if isinstance(described, Answers):
        rows = _read_payload(described.probabilities, cursor)
        return [Answer(*pair) for pair in zip(described.classifications, rows, strict=True)]
    return [cursor.take(length).tobytes() for length in described.lengths]

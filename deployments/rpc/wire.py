"""Batches between two processes of a machine: each is a frame, whose arrays stay in the memory they arrive in.

A frame is its kind (1 byte), the header's length (4) and the body's length (8), little-endian; then the header in
MessagePack; then the body, whose buffers each begin at a multiple of 8 bytes. Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deployments.contract import batch as contract
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, error_by_code
from deployments.contract.item import Item, Note, Step
from deployments.contract.settings import MIB
from ensemble_serving import answer

# A replica answers a ping by a ping, whatever it works on.
CALL, ANSWER, FAILURE, CLOSING, PING = range(5)
PREFIX = struct.Struct("<BIQ")
MAX_HEADER, MAX_BODY = 16 * MIB, 1024 * MIB
# Most frames without pixels are smaller: reading one takes one system call, and so does writing one.
INBOX = 64 * 1024
ALIGNMENT = 8
CREDENTIALS = struct.Struct("iII")
Dtype = Literal["uint8", "int32", "int64", "float16", "float32", "float64"]
Buffer = bytes | memoryview
Body = NDArray[np.uint8]


class Blobs(msgspec.Struct, tag="blobs"):
    """Byte strings, from an offset in the body on."""

    offset: int
    lengths: list[int]


class Array(msgspec.Struct, tag="array"):
    """An array, at an offset in the body."""

    offset: int
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
    """The header of a frame: its batch, without the payload's memory, and the bytes of that memory."""

    items: tuple[Item, ...]
    payload: Payload
    size: int


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
    """Encode a batch; returns its header and the buffers of its body, padded."""
    buffers: list[Buffer] = []
    payload = _describe(batch.payload, buffers)
    return ENCODER.encode(Header(batch.items, payload, sum(map(len, buffers)))), buffers


def decode(header: bytes, body: Body) -> Batch[Any]:
    """Decode the batch of a frame; the arrays lie in `body`.

    Raises:
        ValueError: the header is malformed, or the body does not fit it.
    """
    found = DECODER.decode(header)
    if found.size != len(body):
        raise ValueError("the body is not as long as its header says")
    # An image that is alone shares no note.
    items = _with_shared_notes(found.items) if len(found.items) > 1 else found.items
    return Batch(_read(found.payload, body), items)


def _with_shared_notes(items: Sequence[Item]) -> tuple[Item, ...]:
    """Share the notes that are equal among the images of a batch, so that each note is counted once."""
    notes: list[Note] = []
    shared = []
    for item in items:
        steps = []
        for step in item.steps:
            note = next((note for note in notes if note == step.note), None)
            if note is None:
                notes.append(note := step.note)
            steps.append(Step(note, step.failure))
        shared.append(replace(item, steps=tuple(steps)))
    return tuple(shared)


def _describe(payload: Any, buffers: list[Buffer]) -> Any:
    """Describe a payload as a `Payload`, and add its padded memory to the buffers."""
    offset = sum(map(len, buffers))
    if isinstance(payload, Mapping):
        return Named({name: _describe(part, buffers) for name, part in payload.items()})
    if isinstance(payload, np.ndarray):
        if payload.dtype.name not in get_args(Dtype):
            raise TypeError(
                f"an array of {payload.dtype} can't be sent by a socket; convert it, or set `edges: handle`"
            )
        whole = np.ascontiguousarray(payload)
        buffers += (whole.reshape(-1).view(np.uint8).data, bytes(-whole.nbytes % ALIGNMENT))
        return Array(offset, payload.dtype.name, list(whole.shape))
    if payload and isinstance(payload[0], Answer):
        classifications, probabilities = zip(*payload, strict=True)
        return Answers(list(classifications), _describe(np.stack(probabilities), buffers))
    for blob in payload:
        buffers += (blob, bytes(-len(blob) % ALIGNMENT))
    return Blobs(offset, [len(blob) for blob in payload])


def _read(described: Payload, body: Body) -> Any:
    """Read a payload from the body; raises ValueError if it is not in there."""
    if isinstance(described, Array):
        shape, dtype = described.shape, np.dtype(described.dtype)
        if min(shape, default=0) < 0:
            raise ValueError("an extent is negative")
        return _cut(body, described.offset, dtype.itemsize * prod(shape)).view(dtype).reshape(shape)
    if isinstance(described, Named):
        return {name: _read(part, body) for name, part in described.parts.items()}
    if isinstance(described, Answers):
        rows = _read(described.probabilities, body)
        return [Answer(*pair) for pair in zip(described.classifications, rows, strict=True)]
    blobs, offset = [], described.offset
    for length in described.lengths:
        blobs.append(_cut(body, offset, length).tobytes())
        offset += length + -length % ALIGNMENT
    return blobs


def _cut(body: Body, offset: int, size: int) -> Body:
    """Return `size` bytes of the body; raises ValueError if it has fewer."""
    if min(offset, size) < 0 or offset + size > len(body):
        raise ValueError("the body is shorter than its header says")
    return body[offset : offset + size]


class Frames(asyncio.BufferedProtocol):
    """One end of a connection between two processes of the same user; a subclass handles the frames that arrive.

    Attributes:
        pid: the process at the other end.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray(INBOX)
        self._arrived = 0
        # A body that is arriving: the frame's kind and header, the body's memory, and how much of it is filled.
        self._large: tuple[int, bytes, Body] | None = None
        self._filled = 0

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """Handle a frame that has arrived."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check that the process at the other end belongs to the same user."""
        # uvloop's transports are no subclasses.
        self._transport = cast(asyncio.Transport, transport)
        end = transport.get_extra_info("socket")
        self.pid, uid, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != os.getuid():
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the next bytes are read into."""
        if self._large is not None:
            return self._large[2].data.cast("B")[self._filled :]
        return memoryview(self._inbox)[self._arrived :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frame if these bytes complete it."""
        if self._large is not None:
            self._filled += nbytes
            if self._filled == len(self._large[2]):
                frame, self._large = self._large, None
                self.received(*frame)
            return
        self._arrived += nbytes
        if self._arrived < PREFIX.size:
            return
        kind, header_size, body_size = PREFIX.unpack_from(self._inbox)
        begin = PREFIX.size + header_size
        if header_size > MAX_HEADER or body_size > MAX_BODY:
            self.abort()
        elif self._arrived >= begin:
            self._begin_body(kind, bytes(memoryview(self._inbox)[PREFIX.size : begin]), body_size)
        elif self._arrived == len(self._inbox):
            # It grows as it fills, so that a false length costs nothing; the event loop still holds the old one.
            self._inbox = self._inbox + bytes(min(begin, 2 * self._arrived) - self._arrived)

    def _begin_body(self, kind: int, header: bytes, size: int) -> None:
        """Move the arrived part of the body out of the inbox."""
        begin = PREFIX.size + len(header)
        here = min(self._arrived - begin, size)
        if self._arrived > begin + here:
            # There is one call at a time, so nothing may follow a frame before it is answered.
            self.abort()
            return
        # The system allocates it as it is written to, so that here, too, a false length costs nothing.
        body = np.empty(size, np.uint8)
        body[:here] = np.frombuffer(self._inbox, np.uint8, here, begin)
        self._arrived = 0
        if len(self._inbox) > INBOX:
            self._inbox = bytearray(INBOX)
        if here == size:
            self.received(kind, header, body)
        else:
            self._large, self._filled = (kind, header, body), here

    def send(self, kind: int, header: bytes = b"", buffers: Sequence[Buffer] = ()) -> None:
        """Write a frame."""
        size = sum(map(len, buffers))
        head = PREFIX.pack(kind, len(header), size) + header
        assert self._transport is not None
        if size < INBOX:
            self._transport.write(b"".join([head, *buffers]))
        else:
            self._transport.writelines([head, *filter(len, buffers)])

    def close(self) -> None:
        """Close the connection once everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, so that the other end notices and stops its work."""
        if self._transport is not None:
            self._transport.abort()

"""Batches between two processes of a machine: each is a frame, whose arrays stay in the memory they arrive in.

A frame is its kind (1 byte) and the length of its content (8 bytes), little-endian; then the content. A batch is in
MessagePack. Nothing is unpickled.
"""

import asyncio
import hashlib
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
import numpy as np

from deployments.contract import batch as contract
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, error_by_code
from deployments.contract.item import Item
from deployments.contract.settings import MIB
from ensemble_serving import answer

# A replica answers a ping by a ping, whatever it works on.
CALL, ANSWER, FAILURE, CLOSING, PING = range(5)
HEAD = struct.Struct("<BQ")
MAX_BYTES = 1024 * MIB
CREDENTIALS = struct.Struct("iII")
Dtype = Literal["uint8", "int32", "int64", "float16", "float32", "float64"]


class Blobs(msgspec.Struct, tag="blobs"):
    """Byte strings."""

    parts: list[bytes]


class Array(msgspec.Struct, tag="array"):
    """An array, and its memory in C's order."""

    dtype: Dtype
    shape: list[int]
    memory: memoryview


class Named(msgspec.Struct, tag="named"):
    """Arrays, or byte strings, by name."""

    parts: dict[str, Array | Blobs]


class Answers(msgspec.Struct, tag="answers"):
    """Classifications, and the array of their probabilities."""

    classifications: list[Classification]
    probabilities: Array


Payload = Blobs | Array | Named | Answers


class Message(msgspec.Struct, array_like=True):
    """A batch."""

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
DECODER = msgspec.msgpack.Decoder(Message, dec_hook=lambda _, error: error_by_code(**error))


def encode(batch: Batch[Any]) -> bytes:
    """Encode a batch."""
    return ENCODER.encode(Message(batch.items, _described(batch.payload)))


def decode(content: memoryview) -> Batch[Any]:
    """Decode a batch, whose arrays lie in the memory of `content`; raise ValueError if it is none."""
    message = DECODER.decode(content)
    return Batch(_read(message.payload), message.items)


def _described(payload: Any) -> Any:
    """Describe a payload as a `Payload`."""
    if isinstance(payload, Mapping):
        return Named({name: _described(part) for name, part in payload.items()})
    if isinstance(payload, np.ndarray):
        if payload.dtype.name not in get_args(Dtype):
            raise TypeError(
                f"an array of {payload.dtype} can't be sent by a socket; convert it, or set `edges: handle`"
            )
        memory = np.ascontiguousarray(payload).reshape(-1).view(np.uint8).data
        return Array(payload.dtype.name, list(payload.shape), memory)
    if payload and isinstance(payload[0], Answer):
        classifications, probabilities = zip(*payload, strict=True)
        return Answers(list(classifications), _described(np.stack(probabilities)))
    return Blobs(list(payload))


def _read(payload: Payload) -> Any:
    """Read a described payload; raise ValueError if an array has another size than it says."""
    if isinstance(payload, Array):
        return np.frombuffer(payload.memory, payload.dtype).reshape(payload.shape)
    if isinstance(payload, Named):
        return {name: _read(part) for name, part in payload.parts.items()}
    if isinstance(payload, Answers):
        return [Answer(*pair) for pair in zip(payload.classifications, _read(payload.probabilities), strict=True)]
    return payload.parts


class Frames(asyncio.BufferedProtocol):
    """One end of a connection between two processes of the same user; a subclass handles the frames that arrive.

    Attributes:
        pid: the process at the other end.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._transport: asyncio.Transport | None = None
        self._head = memoryview(bytearray(HEAD.size))
        # The kind of the frame whose content arrives, the memory that is being read into, and how much of it is filled.
        self._kind: int | None = None
        self._memory, self._filled = self._head, 0

    def received(self, kind: int, content: memoryview) -> None:
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
        return self._memory[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frame if these bytes complete it."""
        self._filled += nbytes
        if self._filled < len(self._memory):
            return
        if self._kind is None:
            self._kind, size = HEAD.unpack(self._head)
            if size > MAX_BYTES:
                self.abort()
                return
            # The system allocates it as it is written to, so that a false length costs nothing.
            self._memory, self._filled = np.empty(size, np.uint8).data, 0
            if size:
                return
        kind, content = self._kind, self._memory
        self._kind, self._memory, self._filled = None, self._head, 0
        self.received(kind, content)

    def send(self, kind: int, content: bytes = b"") -> None:
        """Write a frame."""
        assert self._transport is not None
        self._transport.writelines([HEAD.pack(kind, len(content)), content])

    def close(self) -> None:
        """Close the connection once everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, so that the other end notices and stops its work."""
        if self._transport is not None:
            self._transport.abort()

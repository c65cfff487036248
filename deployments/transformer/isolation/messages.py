"""What a decoding process and its keeper tell each other: a typed header, and bytes behind it. Nothing is unpickled."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from deployments.contract.preprocessing import Preprocessing

PREFIX = struct.Struct("<IQ")
T = TypeVar("T")


class Ask(msgspec.Struct):
    """An image to decode, whose bytes follow.

    Attributes:
        wanted: how its pixels are to be made.
        max_image_bytes: see `TransformerSettings`, as the next.
        max_image_pixels: likewise.
        free_bytes: memory that it may take at once, without asking for room.
        most_bytes: memory that it may take at all.
        seconds: when it has taken this long, the process is ended by the system.
    """

    wanted: list[Preprocessing]
    max_image_bytes: int
    max_image_pixels: int
    free_bytes: int
    most_bytes: int
    seconds: float


class Room(msgspec.Struct, tag="room"):
    """Decoding it takes this much memory; the process waits to be told whether there is room for it."""

    size: int


class Failed(msgspec.Struct, tag="failed"):
    """It can't be decoded, because of the error that `EnsembleError.to_dict` describes so."""

    error: dict[str, Any]


class Done(msgspec.Struct, tag="done"):
    """Its width and height in pixels, and the shapes of its sets of pixels, which follow."""

    size: tuple[int, int]
    shapes: list[tuple[int, int, int]]


Told = Room | Failed | Done
ENCODER = msgspec.msgpack.Encoder()


def send(connection: socket.socket, header: Any, parts: Sequence[bytes | memoryview] = ()) -> None:
    """Write a header, and bytes behind it."""
    encoded = ENCODER.encode(header)
    connection.sendall(PREFIX.pack(len(encoded), sum(len(part) for part in parts)) + encoded)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, bytearray]:
    """A header, and the bytes behind it.

    Raises:
        EOFError: the other end has closed.
        OSError: it does not answer in the connection's time.
    """
    header_size, size = PREFIX.unpack(_read(connection, PREFIX.size))
    header = decoder.decode(_read(connection, header_size))
    return header, _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytearray:
    whole = bytearray(size)
    rest = memoryview(whole)
    while len(rest):
        count = connection.recv_into(rest)
        if count == 0:
            raise EOFError("the other end has closed")
        rest = rest[count:]
    return whole

"""The messages between a decoding process and its worker: a typed header, and bytes behind it. Nothing is unpickled."""

import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from deployments.contract.preprocessing import Preprocessing

PREFIX = struct.Struct("<IQ")
ENCODER = msgspec.msgpack.Encoder()
T = TypeVar("T")


class Request(msgspec.Struct):
    """An image to decode, whose bytes follow; the limits have the names of `TransformerSettings`.

    Attributes:
        wanted: the preprocessings, each of which gets pixels.
        free_bytes: memory that decoding may take without a reservation.
        max_bytes: memory that decoding may take with a reservation.
        seconds: the system ends the process once the request has taken this long.
    """

    wanted: list[Preprocessing]
    max_image_bytes: int
    max_image_pixels: int
    free_bytes: int
    max_bytes: int
    seconds: float


class Reservation(msgspec.Struct, tag="reservation"):
    """The process needs this much memory for the image, bytes; a bool, whether it gets it, is the answer."""

    size: int


class Failure(msgspec.Struct, tag="failure"):
    """The image can't be decoded, for the error that `EnsembleError.to_dict` describes."""

    error: dict[str, Any]


class Success(msgspec.Struct, tag="success"):
    """The image's width and height, a fault of its file, and the shapes of its pixels, which follow."""

    size: tuple[int, int]
    warning: str
    shapes: list[tuple[int, int, int]]


Response = Reservation | Failure | Success


def send(connection: socket.socket, header: Any, parts: Sequence[bytes | memoryview] = ()) -> None:
    """Send a header, and bytes behind it."""
    encoded = ENCODER.encode(header)
    connection.sendall(PREFIX.pack(len(encoded), sum(len(part) for part in parts)) + encoded)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, bytearray]:
    """Receive a header, and the bytes behind it.

    Raises:
        EOFError: the other end has closed.
        OSError: it does not answer within the connection's timeout.
    """
    header_size, size = PREFIX.unpack(_read(connection, PREFIX.size))
    header = decoder.decode(_read(connection, header_size))
    return header, _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while len(rest):
        count = connection.recv_into(rest)
        if count == 0:
            raise EOFError("the other end has closed")
        rest = rest[count:]
    return content

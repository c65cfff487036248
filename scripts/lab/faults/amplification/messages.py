"""gRPC messages that are cheap to send, made of the descriptors of what a method takes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from scripts.lab.faults.amplification.images import IMAGES

Make = Callable[[Random, int], bytes]
VARINT, FIXED64, BYTES, OPEN, CLOSE = range(5)
# A field that no message has.
UNKNOWN = 1000
# An image may come as often as this, in about as many bytes together.
MOST_IMAGES, MOST_BYTES = 64, 30 * 2**20


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    """A field with a length: a text, a message, packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def messages(message: Descriptor) -> dict[str, Make]:
    """What may be sent to a method, by what is large about it: each of its fields, nested ones too, in each way."""
    made: dict[str, Make] = {"nothing": lambda rng, size: b"", "zeros": lambda rng, size: bytes(size)}
    made |= {f"unknown fields: {name}": _repeated(unit) for name, unit in _units(UNKNOWN).items()}
    made["deep groups"] = lambda rng, size: _groups(size)
    for way in _ways(message):
        name = ".".join(each.name for each in way)
        number = way[-1].number
        if way[-1].type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            made[f"{name}: long"] = _within(way, lambda rng, size, n=number: field(n, b"x" * size))  # type: ignore[misc]
            made[f"{name}: long, of emoji"] = _within(
                way,
                lambda rng, size, n=number: field(n, "\U0001f600".encode() * (size // 4)),  # type: ignore[misc]
            )
        if way[-1].type == FieldDescriptor.TYPE_MESSAGE:
            made[f"{name}: long"] = _within(way, lambda rng, size, n=number: field(n, bytes(size)))  # type: ignore[misc]
        for kind, unit in _units(number).items():
            made[f"{name}: {kind}"] = _within(way, _repeated(unit))
        # Where messages hold others: as many of the outer one, each with one of the inner.
        if len(way) > 1:
            made[f"{name}: each in a message of its own"] = _repeated(_wrapped(way, field(number, b"")))
    made |= {f"images: {name}": _images(message, name) for name in IMAGES if _holds_images(message)}
    return made


def _units(number: int) -> dict[str, bytes]:
    """A field in each of the ways of the wire, as small as it can be."""
    return {
        "empty": field(number, b""),
        "zero": varint(number << 3 | VARINT) + b"\0",
        "the largest number": varint(number << 3 | VARINT) + b"\xff" * 9 + b"\1",
        "eight bytes": varint(number << 3 | FIXED64) + bytes(8),
        "one byte, packed": field(number, b"\1" * 100),
    }


def _repeated(unit: bytes) -> Make:
    return lambda rng, size: unit * (size // len(unit))


def _groups(size: int) -> bytes:
    opening, closing = varint(UNKNOWN << 3 | 3), varint(UNKNOWN << 3 | 4)
    depth = size // (len(opening) + len(closing))
    return opening * depth + closing * depth


def _ways(message: Descriptor, depth: int = 4) -> list[tuple[FieldDescriptor, ...]]:
    """The way to each field of a message and of those within, the outermost first."""
    found: list[tuple[FieldDescriptor, ...]] = []
    for each in message.fields:
        found.append((each,))
        if each.message_type is not None and depth > 1:
            found += [(each, *inner) for inner in _ways(each.message_type, depth - 1)]
    return found


def _wrapped(way: tuple[FieldDescriptor, ...], content: bytes) -> bytes:
    for outer in reversed(way[:-1]):
        content = field(outer.number, content)
    return content


def _within(way: tuple[FieldDescriptor, ...], make: Make) -> Make:
    return lambda rng, size: _wrapped(way, make(rng, size))


def _holds_images(message: Descriptor) -> bool:
    return message.name in {"ModelInferRequest", "PredictRequest", "ClassificationRequest"}


def _images(message: Descriptor, name: str) -> Make:
    def made(rng: Random, size: int) -> bytes:
        image = IMAGES[name](rng, min(size, MOST_BYTES))
        count = min(rng.choice((1, MOST_IMAGES)), max(1, MOST_BYTES // (len(image) + 1)))
        if message.name == "PredictRequest":
            shape = field(2, field(2, varint(1 << 3) + varint(count)))
            tensor = varint(1 << 3) + b"\7" + shape + field(8, image) * count
            return field(1, field(1, b"ensemble")) + field(2, field(1, b"image") + field(2, tensor))
        if message.name == "ClassificationRequest":
            feature = field(1, b"image") + field(2, field(1, field(1, image)))
            examples = field(1, field(1, field(1, feature))) * count
            return field(1, field(1, b"ensemble")) + field(2, field(1, examples))
        tensor = field(1, b"image") + field(2, b"BYTES") + field(3, varint(count))
        start = field(1, b"ensemble")
        if rng.random() < 0.5:
            return start + field(5, tensor + field(5, field(8, image) * count))
        return start + field(5, tensor) + field(7, (struct.pack("<I", len(image)) + image) * count)

    return made

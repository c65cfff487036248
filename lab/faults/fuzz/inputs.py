"""An input of the fuzzers: the bytes that are sent, and damage to well-formed bytes."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import yaml

from deployments.ingress.settings import MOST_ELEMENTS

# `http` is all that is written to a connection; `grpc` a message as it is, without protobuf's checks; `http2` frames
# that no gRPC library would write.
Way = Literal["http", "grpc", "http2"]
# From a size in bytes to an image or a message.
Make = Callable[[Random, int], bytes]
# The most bytes of a request: the server's limit, less what a head takes.
MIB = 2**20
MOST_BYTES = 32 * MIB - 2**16
# An image may come as often as this in a request, in about as many bytes together.
MOST_IMAGES, MOST_IMAGE_BYTES = 64, 23 * MIB
# Sizes and counts that parsers trip over.
AWKWARD = (0, 1, 2, 7, 8, 15, 16, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
# Headers are where parsers decide what to allocate.
HEADER_BYTES = 96
# What a server may count and refuse is sent in this number, too.
NEARLY = MOST_ELEMENTS - 64
REPEATED = re.compile(r"<<(.*?)\*(\d+)>>", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        where: the route or gRPC method that receives it.
        what: what is hostile or large about it, `<family>: <kind>`.
        content: the bytes that are sent.
        way: how the bytes are sent.
        with_key: whether the input shows an API key.
        metadata: of a gRPC call.
        packing: how a gRPC message is compressed.
        whole: whether the request is complete, so that an answer is due. The client ends an incomplete one by closing.
        documented: whether an error must have the documented JSON body.
        pieces: the number of pieces that an HTTP request is sent in, a millisecond apart.
    """

    where: str
    what: str
    content: bytes
    way: Way = "http"
    with_key: bool = False
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    packing: Literal["", "gzip", "deflate"] = ""
    whole: bool = True
    documented: bool = False
    pieces: int = 1

    @property
    def size(self) -> int:
        """Bytes on the wire, without the frames of HTTP/2."""
        return len(zlib.compress(self.content)) if self.packing else len(self.content)


def family(what: str) -> str:
    """Return the first part of an input's `what`."""
    return what.partition(":")[0]


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_read(each) for each in value]
    return REPEATED.sub(lambda found: found[1] * int(found[2]), value).encode("latin-1")


# The hand-made cases, by name: lists of bytes, and mappings of names to bytes.
CASES: dict[str, Any] = _read(yaml.safe_load(Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")))


def stretched(
    size: int,
    unit: bytes,
    first: bytes = b"",
    last: bytes = b"",
    close: bytes = b"",
    most: bytes = b"",
    cap: bytes = b"",
) -> bytes:
    """Return a long case of the corpus of about `size` bytes; the arguments are explained there."""
    count = max(1, size // len(unit + close))
    if cap:
        count = min(count, NEARLY // int(cap))
        unit += b" " * ((size // count - len(unit + close)) * (not close))
    if most:
        count = min(count, int(most))
    units = [unit.replace(b"%x", b"%x" % number) for number in range(count)] if b"%x" in unit else [unit * count]
    return first + b"".join(units) + last + close * count


def mutated(data: bytes, rng: Random) -> bytes:
    """Return the bytes with one to four parts removed, repeated, moved, filled, flipped, or made awkward numbers."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            at, elsewhere = (
                rng.randrange(rng.choice((min(len(data), HEADER_BYTES), len(data)))),
                rng.randrange(len(data)),
            )
            size = rng.choice((1, 2, 4, rng.randrange(1, 65), rng.randrange(1, max(2, len(data) // 8))))
            part, code = data[at : at + size], rng.choice(("<H", ">H", "<I", ">I"))
            number = struct.pack(code, rng.choice(AWKWARD) & (0xFFFF if code[1] == "H" else 0xFFFFFFFF))
            replaced, removed = rng.choice(
                (
                    (b"", size),
                    (part * rng.choice((2, 3, 30)), size),
                    (data[elsewhere : elsewhere + size], size),
                    (rng.choice((b"\0", b"\xff")) * len(part), size),
                    (rng.randbytes(min(size, 64)), 0),
                    (bytes(byte ^ 1 << rng.randrange(8) for byte in part), size),
                    (number, len(number)),
                )
            )
            data = data[:at] + replaced + data[at + removed :]
    return data


def truncated(data: bytes, rng: Random) -> bytes:
    """Return the beginning of the bytes."""
    return data[: rng.randrange(len(data))]


def damaged(data: bytes, rng: Random) -> bytes:
    """Return the bytes mutated or truncated."""
    return rng.choice((mutated, truncated))(data, rng)


def several(make: Make, rng: Random, size: int) -> list[bytes]:
    """Return an image once, or as often as fits."""
    image = make(rng, min(size, MOST_IMAGE_BYTES))
    fits = max(1, min(size, MOST_IMAGE_BYTES) // (len(image) + 1))
    return [image] * min(fits, rng.choice((1, MOST_IMAGES)))


def zeros(size: int, wbits: int) -> bytes:
    """Return `size` compressed zeros, about a thousandth of the bytes; `wbits` is zlib's. One megabyte is repeated."""
    packer, block = zlib.compressobj(9, wbits=wbits), bytes(MIB)
    start = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    # The checksum at the end is wrong; a reader finds that out after it has unpacked everything.
    return start + repeated * (size // MIB - 1) + packer.flush()

"""Images that are cheap to send: headers that declare much, and files with millions of parts before their pixels."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from random import Random

from lab.faults.hostile.bombs import BOMBS, chunk
from lab.faults.hostile.pictures import FLAT, largest, original
from scripts.shipped import shipped

START, END = b"\xff\xd8", b"\xff\xd9"
# Segments of a JPEG: a marker and its content.
SEGMENTS = {
    "empty comments": b"\xff\xfe\0\x02",
    "empty profiles": b"\xff\xe2\0\x02",
    "restart intervals": b"\xff\xdd\0\x04\0\0",
    "quantization tables": b"\xff\xdb\0\x43\0" + bytes([16] * 64),
    "Huffman tables": b"\xff\xc4\0\x14\0\x01" + bytes(15) + b"\0",
    "long comments": b"\xff\xfe\xff\xff" + bytes(65_533),
    "metadata": b"\xff\xe1\0\x10Exif\0\0II*\0\x08\0\0\0",
    "fill": b"\xff",
    "bytes between": b"\x01",
    "escaped bytes between": b"\xff\0",
    "markers without a length": b"\xff\x01",
}
# What starts files, before as many zeros as are wanted.
STARTS = (START, b"\x89PNG\r\n\x1a\n", b"BM", b"GIF89a", b"RIFF\xff\xff\xff\x7fWEBPVP8X", b"II*\0\x08\0\0\0", b"")
Make = Callable[[Random, int], bytes]


def _cat() -> bytes:
    return shipped("tests/cat.jpg").read_bytes()


def _jpeg(segment: bytes, rng: Random, size: int) -> bytes:
    """The cat, with so many bytes of segments before its pixels, or with nothing else."""
    return START + segment * (size // len(segment)) + (_cat()[2:] if rng.random() < 0.7 else END)


def _chunks(rng: Random, size: int) -> bytes:
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    empty = chunk(rng.choice((b"tEXt", b"IDAT", b"prVt", b"tIME")), b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + empty * (size // len(empty))


def _blocks(rng: Random, size: int) -> bytes:
    """A GIF of empty extensions or tiny frames."""
    frame = b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0"
    block = rng.choice((b"\x21\xfe\0", b"\x21\xf9\x04\0\0\0\0\0" + frame))
    return b"GIF89a\x01\0\x01\0\0\0\0" + block * (size // len(block)) + b";"


def _boxes(rng: Random, size: int) -> bytes:
    box = rng.choice((b"\0\0\0\x08free", b"\0\0\0\x08ispe", b"\0\0\0\x0cihdr\0\0\0\0"))
    start = rng.choice((b"\0\0\0\x18ftypavif\0\0\0\0avifmif1", b"\0\0\0\x0cjP  \r\n\x87\n"))
    return start + box * (size // len(box))


def _digits(rng: Random, size: int) -> bytes:
    return rng.choice((b"P6 ", b"P5\n#", b"P3 1 1 255 ", b"P2 ")) + rng.choice((b"1", b" ", b"#\n", b"0 ")) * size


def _padded(make: Callable[[Random], bytes], rng: Random, size: int) -> bytes:
    """An image, with zeros behind it as often as not."""
    return make(rng) + bytes(size if rng.random() < 0.5 else 0)


IMAGES: dict[str, Make] = {
    **{f"a JPEG of {name}": partial(_jpeg, segment) for name, segment in SEGMENTS.items()},
    **{f"a bomb: {name}": partial(_padded, make) for name, make in BOMBS.items()},
    **{f"49 megapixels: {name}": lambda rng, size, name=name: original(name) for name in FLAT},  # type: ignore[misc]
    **{
        f"as large as may be: {name}": partial(_padded, lambda rng, name=name: largest(name))  # type: ignore[misc]
        for name in FLAT
    },
    "a PNG of empty chunks": _chunks,
    "a GIF of empty blocks": _blocks,
    "a file of empty boxes": _boxes,
    "a PPM of digits": _digits,
    "zeros behind a file's start": lambda rng, size: rng.choice(STARTS) + bytes(size),
    "random bytes": lambda rng, size: rng.choice(STARTS) + rng.randbytes(size),
    "a small photograph": lambda rng, size: _cat(),
}

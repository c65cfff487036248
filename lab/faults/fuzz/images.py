"""Images for the fuzzers: well-formed ones to be damaged, and small files that ask for much."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from math import isqrt
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from deployments.transformer.decoding import BYTES_PER_PIXEL, USUAL_BYTES_PER_PIXEL
from deployments.transformer.transformer import TransformerSettings
from lab.faults.fuzz.inputs import CASES, Make, mutated, stretched, truncated, zeros
from scripts.shipped import shipped

# A JPEG of 49 megapixels is accepted: the limit is 50.
ORIGINAL_EDGE = 7000
SIZES = ((16, 16), (33, 47), (64, 64), (120, 80))
# The sides of an image whose header is changed: their bytes stand nowhere else in a small file.
EDGES, SIDES = (299, 455), (1, 20_000, 65_500, 65_535, 2**31 - 1, 2**32 - 1)
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
TEXT_BYTES = 64 * 1024 * 1024
Options = dict[str, Any]


# Each format: Pillow's name, and the options of saving, of which one is taken; by the first ones a large image of one
# colour is a small file.
FORMATS: dict[str, tuple[str, tuple[Options, ...]]] = {
    "jpeg": ("JPEG", ({}, {"subsampling": 0}, {"quality": 10})),
    "progressive jpeg": ("JPEG", ({"progressive": True}, {"progressive": True, "subsampling": 0})),
    "png": ("PNG", ({},)),
    "webp": ("WEBP", ({"lossless": True}, {}, {"quality": 5})),
    "bmp": ("BMP", ({},)),
    "gif": ("GIF", ({}, {"interlace": 0})),
    "tiff": ("TIFF", tuple({"compression": each} for each in ("tiff_deflate", "tiff_lzw", "packbits", None))),
    "ppm": ("PPM", ({},)),
    "jpeg 2000": ("JPEG2000", ({}, {"irreversible": True}, {"tile_size": (16, 16)})),
    "avif": ("AVIF", ({"speed": 10}, {"speed": 10, "quality": 20})),
}
ANIMATED = ("gif", "png", "webp", "tiff", "avif")
# Of these, a format has what Pillow saves in it.
MODES = ("RGB", "L", "RGBA", "CMYK", "P", "1", "I;16", "LA")
# Formats in which a large image is small only in black and white.
BLACK_AND_WHITE = ("bmp", "ppm")


def saved(image: Image.Image, pillow: str, **options: Any) -> bytes:
    """Return an image as a file."""
    out = io.BytesIO()
    image.save(out, pillow, **options)
    return out.getvalue()


def drawn(rng: Random, mode: str = "RGB", size: tuple[int, int] | None = None) -> Image.Image:
    """Draw a small image, as smooth as photographs are."""
    seed = np.random.default_rng(rng.getrandbits(32))
    colours = Image.fromarray(seed.integers(0, 256, (4, 5, 3), np.uint8)).resize(size or rng.choice(SIZES))
    if mode == "I;16":
        return Image.fromarray(np.asarray(colours.convert("L"), np.uint16) * 257)
    return colours.convert(mode)


def _one(name: str, rng: Random, size: tuple[int, int] | None = None) -> bytes:
    pillow, options = FORMATS[name]
    for mode in rng.sample(MODES, len(MODES)):
        with suppress(OSError, KeyError, ValueError):
            return saved(drawn(rng, mode, size), pillow, **rng.choice(options))
    raise ValueError(f"Pillow saves no mode as {name}")


@cache
def well_formed(name: str, number: int) -> bytes:
    """Return an image of a format, one of a dozen."""
    return _one(name, Random(f"{name} {number % 12}"))


@cache
def animated(name: str, frames: int) -> bytes:
    """Return an animation; a format without animations has pages instead."""
    first, *more = (drawn(Random(number), "RGB").resize((24, 24)) for number in range(frames))
    pillow, (options, *_) = FORMATS[name]
    return saved(first, pillow, save_all=True, append_images=more, **options)


@cache
def flat(name: str, edge: int) -> bytes:
    """Return a square image of one colour; its edge is in pixels."""
    pillow, (options, *_) = FORMATS[name]
    return saved(Image.new("1" if name in BLACK_AND_WHITE else "RGB", (edge, edge)), pillow, **options)


def largest(name: str) -> bytes:
    """Return the largest image of a format that a server with default settings decodes."""
    if name == "jpeg":
        return flat(name, ORIGINAL_EDGE)
    pillow, _ = FORMATS[name]
    # libjpeg keeps 3 bytes per pixel of an image with 4:2:0.
    weight = 3 if pillow == "JPEG" else BYTES_PER_PIXEL.get(pillow, USUAL_BYTES_PER_PIXEL)
    return flat(name, isqrt(TransformerSettings().max_decoding_bytes // weight))


def _written(side: int) -> list[bytes]:
    """Write a side as formats do: in 4 or 2 bytes of either order, less one in 3 bytes (WebP), and in digits."""
    short, packed = min(side, 2**16 - 1), (min(side, 2**24) - 1).to_bytes(3, "little")
    numbers = (struct.pack(">I", side), struct.pack("<I", side), struct.pack(">H", short), struct.pack("<H", short))
    return [*numbers, packed, b"%d" % side]


def oversized(name: str, rng: Random) -> bytes:
    """Return an image of a format whose headers declare large sides."""
    data = _one(name, rng, EDGES)
    for edge in EDGES:
        for old, new in zip(_written(edge), _written(rng.choice(SIDES)), strict=True):
            data = data.replace(old, new)
    # The checksum of a PNG's header is right.
    return data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:] if name == "png" else data


def chunk(name: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG with the right checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@cache
def _compressed_text() -> bytes:
    return zeros(TEXT_BYTES, 15)


def png_text(rng: Random) -> bytes:
    """Return a small PNG with 64 MB of text, or of a colour profile, in a few kilobytes."""
    plain, kind = saved(drawn(rng), "PNG"), rng.choice((b"zTXt", b"iCCP", b"iTXt"))
    prefix = b"comment\0\1\0\0\0" if kind == b"iTXt" else b"comment\0\0"
    return plain[:33] + chunk(kind, prefix + _compressed_text()) * rng.choice((1, 8)) + plain[33:]


def apng(rng: Random) -> bytes:
    """Return a PNG that declares thousands of frames."""
    plain, (width, height) = saved(drawn(rng), "PNG"), (min(rng.choice(SIDES), 2**31 - 1) for _ in "wh")
    control = chunk(b"acTL", struct.pack(">II", rng.choice((2, 2**31 - 1)), 0))
    frame = chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 0, 0))
    return plain[:33] + control + frame * rng.choice((1, 2, 1000)) + plain[33:]


def scans(rng: Random) -> bytes:
    """Return a progressive JPEG whose last scan is repeated up to some thousand times."""
    whole = flat("progressive jpeg", rng.choice((64, 600, 2000, ORIGINAL_EDGE)))
    # A test has names instead of large images.
    last = whole[max(0, whole.rfind(START_OF_SCAN)) : -2]
    return whole[:-2] + last * min(rng.choice((30, 300, 3000)), 2**20 // len(last)) + whole[-2:]


BOMBS: dict[str, Callable[[Random], bytes]] = {
    **{name: partial(oversized, name) for name in FORMATS},
    "jpeg of many scans": scans,
    "png of long texts": png_text,
    "png of many frames": apng,
    "gif of many frames": lambda rng: animated("gif", 300),
    "webp of many frames": lambda rng: animated("webp", 100),
}


def photograph() -> bytes:
    """Return a small photograph that every server classifies."""
    return shipped("tests/cat.jpg").read_bytes()


def _mutated(name: str, rng: Random, size: int) -> bytes:
    moves = name in ANIMATED and rng.random() < 0.15
    return mutated(animated(name, 5) if moves else well_formed(name, rng.randrange(12)), rng)


def _truncated(name: str, rng: Random, size: int) -> bytes:
    return truncated(well_formed(name, rng.randrange(12)), rng)


def _padded(make: Callable[[Random], bytes], rng: Random, size: int) -> bytes:
    return make(rng) + bytes(size if rng.random() < 0.5 else 0)


def _long(name: str, rng: Random, size: int) -> bytes:
    """Return a long case of the corpus; behind a JPEG's there is a photograph, or the end."""
    ending = rng.choice((photograph()[2:], photograph()[2:], END_OF_IMAGE)) if "JPEG of" in name else b""
    return stretched(size, **CASES["long_images"][name]) + ending


def _large(name: str, rng: Random) -> bytes:
    return rng.choice((largest(name), flat(name, ORIGINAL_EDGE)))


IMAGES: dict[str, Make] = {
    **{f"mutated images: {name}": partial(_mutated, name) for name in FORMATS},
    **{f"truncated images: {name}": partial(_truncated, name) for name in FORMATS},
    **{f"bombs: {name}": partial(_padded, make) for name, make in BOMBS.items()},
    **{f"parts: {name}": partial(_long, name) for name in CASES["long_images"]},
    "parts: random bytes": lambda rng, size: rng.choice((b"", b"\xff\xd8", b"BM", b"GIF89a")) + rng.randbytes(size),
    "parts: none but a photograph": lambda rng, size: photograph(),
    # These take seconds to make, and megabytes to send.
    **{f"large images: {name}": partial(_padded, partial(_large, name)) for name in FORMATS},
}

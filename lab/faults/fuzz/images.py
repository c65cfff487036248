"""Images for the fuzzers: damaged, long, large, and bombs that unpack to far more than their bytes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache
from math import isqrt
from random import Random
from typing import Any

from PIL import Image

from deployments.transformer.decoding import BYTES_PER_PIXEL, USUAL_BYTES_PER_PIXEL
from deployments.transformer.transformer import TransformerSettings
from lab.faults.fuzz.corpus import MIB, damaged, long_case, zeros
from scripts.shipped import shipped

# A JPEG of 49 megapixels is accepted: the limit is 50.
ORIGINAL_EDGE = 7000
SIZES = ((16, 16), (33, 47), (64, 64), (120, 80))
# Well-formed images of a format differ by a number below this.
VARIANTS = 12
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
TEXT_BYTES = 64 * MIB
# Each format: Pillow's name, and options by which a large image of one colour is a small file.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
    "gif": ("GIF", {}),
    "tiff": ("TIFF", {"compression": "tiff_deflate"}),
    "ppm": ("PPM", {}),
    "jpeg 2000": ("JPEG2000", {}),
    "avif": ("AVIF", {"speed": 10}),
}
ANIMATED = ("gif", "png", "webp", "tiff", "avif")
# Formats in which a large image is small only in black and white.
BLACK_AND_WHITE = ("bmp", "ppm")


def saved(image: Image.Image, name: str, **more: Any) -> bytes:
    """Return an image as a file of a format."""
    pillow, options = FORMATS[name]
    image.save(out := io.BytesIO(), pillow, **options, **more)
    return out.getvalue()


def photograph() -> bytes:
    """Return a small photograph that every server classifies."""
    return shipped("tests/cat.jpg").read_bytes()


def small(rng: Random) -> Image.Image:
    """Return the photograph at a small size, in colour or grey."""
    return Image.open(io.BytesIO(photograph())).resize(rng.choice(SIZES)).convert(rng.choice(("RGB", "L")))


@cache
def well_formed(name: str, number: int) -> bytes:
    """Return an image of a format, one of a dozen."""
    return saved(small(Random(f"{name} {number % VARIANTS}")), name)


@cache
def animated(name: str, frames: int) -> bytes:
    """Return an animation; a format without animations has pages instead."""
    first, *more = (small(Random(0)).convert("RGB").resize((24, 24)).rotate(number) for number in range(frames))
    return saved(first, name, save_all=True, append_images=more)


@cache
def flat(name: str, edge: int) -> bytes:
    """Return a square image of one colour; its edge is in pixels."""
    black = name in BLACK_AND_WHITE or edge > ORIGINAL_EDGE
    return saved(Image.new("1" if black else "RGB", (edge, edge)), name)


def largest(name: str) -> bytes:
    """Return the largest image of a format that a server with default settings decodes."""
    if name == "jpeg":
        return flat(name, ORIGINAL_EDGE)
    pillow, _ = FORMATS[name]
    # libjpeg keeps 3 bytes per pixel of an image with 4:2:0.
    weight = 3 if pillow == "JPEG" else BYTES_PER_PIXEL.get(pillow, USUAL_BYTES_PER_PIXEL)
    return flat(name, isqrt(TransformerSettings().max_decoding_bytes // weight))


def png_text(rng: Random) -> bytes:
    """Return a small PNG with 64 MB of text, or of a colour profile, in a few kilobytes."""
    plain, kind = well_formed("png", rng.randrange(VARIANTS)), rng.choice((b"zTXt", b"iCCP", b"iTXt"))
    content = (b"comment\0\1\0\0\0" if kind == b"iTXt" else b"comment\0\0") + zeros(TEXT_BYTES, 15)
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return plain[:33] + chunk * rng.choice((1, 8)) + plain[33:]


def scans(edge: int, times: int) -> bytes:
    """Return a square progressive JPEG whose last scan is repeated, into a megabyte at most."""
    whole = flat("progressive jpeg", edge)
    last = whole[max(0, whole.rfind(START_OF_SCAN)) : -2]
    return whole[:-2] + last * min(times, MIB // len(last)) + whole[-2:]


BOMBS: dict[str, Callable[[Random], bytes]] = {
    "jpeg of many scans": lambda rng: scans(rng.choice((64, 600, 2000, ORIGINAL_EDGE)), rng.choice((30, 300, 3000))),
    "png of long texts": png_text,
    "png of many pixels": lambda rng: flat("png", 20_000),
    "gif of many frames": lambda rng: animated("gif", 300),
    "webp of many frames": lambda rng: animated("webp", 100),
}


def _part(rng: Random, size: int) -> tuple[str, bytes]:
    """Draw an image of very many parts, or one of none."""
    if rng.random() < 0.1:
        return rng.choice((("none but a photograph", photograph()), ("random bytes", rng.randbytes(size))))
    name, image = long_case(rng, "long_images", size)
    # A photograph continues a long JPEG.
    return name, image + rng.choice((photograph()[2:] if "JPEG of" in name else b"", END_OF_IMAGE))


def _damaged(rng: Random, _: int) -> tuple[str, bytes]:
    name = rng.choice(list(FORMATS))
    moves = name in ANIMATED and rng.random() < 0.15
    return name, damaged(animated(name, 5) if moves else well_formed(name, rng.randrange(VARIANTS)), rng)


def _bomb(rng: Random, _: int) -> tuple[str, bytes]:
    name, bomb = rng.choice(list(BOMBS.items()))
    return name, bomb(rng)


def _large(rng: Random, _: int) -> tuple[str, bytes]:
    name = rng.choice(list(FORMATS))
    return name, largest(name)


# By family: draws a hostile image and its name, by a random source and about a size in bytes.
HOSTILE = {"parts": _part, "damaged images": _damaged, "bombs": _bomb, "large images": _large}

"""Pictures of every accepted format: well formed ones to be damaged, and the largest that are accepted."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
from PIL import Image

# 49 megapixels of the 50 that are accepted.
ORIGINAL_EDGE = 7000

# The formats by what they are called here: Pillow's name, the modes, and the options of saving, of which one is taken.
FORMATS: dict[str, tuple[str, tuple[str, ...], tuple[dict[str, Any], ...]]] = {
    "jpeg": ("JPEG", ("RGB", "L", "CMYK"), ({}, {"subsampling": 0}, {"quality": 10}, {"optimize": True})),
    "progressive jpeg": ("JPEG", ("RGB", "L"), ({"progressive": True}, {"progressive": True, "subsampling": 0})),
    "png": ("PNG", ("RGB", "L", "RGBA", "P", "1", "I;16", "LA"), ({}, {"optimize": True})),
    "webp": ("WEBP", ("RGB", "RGBA"), ({}, {"lossless": True}, {"quality": 5})),
    "bmp": ("BMP", ("RGB", "L", "P", "1", "RGBA"), ({},)),
    "gif": ("GIF", ("P", "L"), ({}, {"interlace": 0})),
    "tiff": (
        "TIFF",
        ("RGB", "L", "RGBA", "1", "I;16", "F", "CMYK"),
        ({}, {"compression": "tiff_lzw"}, {"compression": "tiff_deflate"}, {"compression": "packbits"}),
    ),
    "ppm": ("PPM", ("RGB", "L", "1", "I;16"), ({},)),
    "jpeg 2000": ("JPEG2000", ("RGB", "L", "RGBA"), ({}, {"irreversible": True}, {"tile_size": (16, 16)})),
    "avif": ("AVIF", ("RGB", "RGBA"), ({"speed": 10}, {"speed": 10, "quality": 20})),
}
ANIMATED = {"gif": "GIF", "png": "PNG", "webp": "WEBP", "tiff": "TIFF", "avif": "AVIF"}


def saved(image: Image.Image, pillow: str, **options: Any) -> bytes:
    """An image as a file."""
    out = io.BytesIO()
    image.save(out, pillow, **options)
    return out.getvalue()


def drawn(rng: Random, mode: str = "RGB") -> Image.Image:
    """A small picture, smooth as photographs are."""
    seed = np.random.default_rng(rng.getrandbits(32))
    size = rng.choice(((16, 16), (33, 47), (64, 64), (120, 80)))
    colours = Image.fromarray(seed.integers(0, 256, (4, 5, 3), np.uint8)).resize(size)
    if mode == "I;16":
        return Image.fromarray(np.asarray(colours.convert("L")).astype(np.uint16) * 257)
    return colours.convert(mode)


@cache
def _one_of(name: str, number: int) -> bytes:
    rng = Random(f"{name} {number}")
    pillow, modes, options = FORMATS[name]
    return saved(drawn(rng, rng.choice(modes)), pillow, **rng.choice(options))


def well_formed(name: str, rng: Random) -> bytes:
    """A picture of a format, one of a dozen."""
    return _one_of(name, rng.randrange(12))


@cache
def animated(name: str, frames: int) -> bytes:
    """A picture that moves; of those that can't, many pages."""
    first, *more = (drawn(Random(number), "RGB").resize((24, 24)) for number in range(frames))
    options = {"speed": 10} if name == "avif" else {}
    return saved(first, ANIMATED[name], save_all=True, append_images=more, **options)


def _flat(mode: str) -> Image.Image:
    return Image.new("RGB", (ORIGINAL_EDGE, ORIGINAL_EDGE), (90, 120, 30)).convert(mode)


ORIGINALS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved(_flat("RGB"), "JPEG"),
    "progressive jpeg": lambda: saved(_flat("RGB"), "JPEG", progressive=True),
    "png": lambda: saved(_flat("RGB"), "PNG"),
    "webp": lambda: saved(_flat("RGB"), "WEBP", lossless=True),
    "gif": lambda: saved(Image.new("P", (ORIGINAL_EDGE, ORIGINAL_EDGE), 7), "GIF"),
    "bmp": lambda: saved(_flat("1"), "BMP"),
    "ppm": lambda: saved(_flat("1"), "PPM"),
    "tiff": lambda: saved(_flat("RGB"), "TIFF", compression="tiff_deflate"),
    "jpeg 2000": lambda: saved(_flat("RGB"), "JPEG2000"),
    "avif": lambda: saved(_flat("RGB"), "AVIF", speed=10),
}


@cache
def original(name: str) -> bytes:
    """The largest picture of a format that is accepted, of one colour, so that it is a small file."""
    return ORIGINALS[name]()

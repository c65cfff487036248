"""Pictures of every accepted format: well formed ones to be damaged, and the largest that are accepted."""

from __future__ import annotations

import io
from functools import cache
from math import isqrt
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from deployments.transformer.decoding import BYTES_PER_PIXEL, USUAL_BYTES_PER_PIXEL
from deployments.transformer.transformer import TransformerSettings

# 49 megapixels of the 50 that are accepted as a JPEG.
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


# Of one colour, so that the files are small: Pillow's name, the mode, and the options of saving.
FLAT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpeg": ("JPEG", "RGB", {}),
    "progressive jpeg": ("JPEG", "RGB", {"progressive": True}),
    "png": ("PNG", "RGB", {}),
    "webp": ("WEBP", "RGB", {"lossless": True}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "1", {}),
    "ppm": ("PPM", "1", {}),
    "tiff": ("TIFF", "RGB", {"compression": "tiff_deflate"}),
    "jpeg 2000": ("JPEG2000", "RGB", {}),
    "avif": ("AVIF", "RGB", {"speed": 10}),
}


@cache
def flat(name: str, edge: int) -> bytes:
    """A square picture of a format, of one colour, its edge in pixels."""
    pillow, mode, options = FLAT[name]
    return saved(Image.new("RGB", (edge, edge), (90, 120, 30)).convert(mode), pillow, **options)


def original(name: str) -> bytes:
    """A picture of 49 megapixels, which is accepted as a JPEG."""
    return flat(name, ORIGINAL_EDGE)


def largest(name: str) -> bytes:
    """The largest picture of a format that a server without settings of its own decodes."""
    pillow, _, _ = FLAT[name]
    if name == "jpeg":
        return original(name)
    # What libjpeg keeps of a picture with 4:2:0.
    weight = 3 if pillow == "JPEG" else BYTES_PER_PIXEL.get(pillow, USUAL_BYTES_PER_PIXEL)
    return flat(name, isqrt(TransformerSettings().max_decoding_bytes // weight))

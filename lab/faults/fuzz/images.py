"""Images for the fuzzers: well formed ones to be damaged, and small files that ask for much."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from math import isqrt
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from deployments.transformer.decoding import BYTES_PER_PIXEL, USUAL_BYTES_PER_PIXEL
from deployments.transformer.transformer import TransformerSettings
from lab.faults.fuzz.inputs import CASES, mutated, stretched, truncated, zeros
from scripts.shipped import shipped

Make = Callable[[Random, int], bytes]
# A JPEG of 49 megapixels is accepted: the limit is 50.
ORIGINAL_EDGE = 7000
SIDES = (20_000, 65_500, 65_535, 2**31 - 1, 2**32 - 1)
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
TEXT_BYTES = 64 * 1024 * 1024

# Each format: Pillow's name, the modes, and the options of saving, of which one is taken.
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
ANIMATED = ("gif", "png", "webp", "tiff", "avif")
# The mode and the options of saving that make a large image of one colour a small file.
FLAT: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("RGB", {}),
    "progressive jpeg": ("RGB", {"progressive": True}),
    "png": ("RGB", {}),
    "webp": ("RGB", {"lossless": True}),
    "gif": ("P", {}),
    "bmp": ("1", {}),
    "ppm": ("1", {}),
    "tiff": ("RGB", {"compression": "tiff_deflate"}),
    "jpeg 2000": ("RGB", {}),
    "avif": ("RGB", {"speed": 10}),
}


def saved(image: Image.Image, pillow: str, **options: Any) -> bytes:
    """Return an image as a file."""
    out = io.BytesIO()
    image.save(out, pillow, **options)
    return out.getvalue()


def drawn(rng: Random, mode: str = "RGB") -> Image.Image:
    """Draw a small image, as smooth as photographs are."""
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
    """Return an image of a format, one of a dozen."""
    return _one_of(name, rng.randrange(12))


@cache
def animated(name: str, frames: int) -> bytes:
    """Return an animation; a format without animations has pages instead."""
    first, *more = (drawn(Random(number), "RGB").resize((24, 24)) for number in range(frames))
    options = {"speed": 10} if name == "avif" else {}
    return saved(first, FORMATS[name][0], save_all=True, append_images=more, **options)


@cache
def flat(name: str, edge: int) -> bytes:
    """Return a square image of one colour; its edge is in pixels."""
    mode, options = FLAT[name]
    return saved(Image.new("RGB", (edge, edge), (90, 120, 30)).convert(mode), FORMATS[name][0], **options)


def largest(name: str) -> bytes:
    """Return the largest image of a format that a server with default settings decodes."""
    if name == "jpeg":
        return flat(name, ORIGINAL_EDGE)
    pillow = FORMATS[name][0]
    # libjpeg keeps 3 bytes per pixel of an image with 4:2:0.
    weight = 3 if pillow == "JPEG" else BYTES_PER_PIXEL.get(pillow, USUAL_BYTES_PER_PIXEL)
    return flat(name, isqrt(TransformerSettings().max_decoding_bytes // weight))


def _sides(rng: Random, most: int = 2**32 - 1) -> tuple[int, int]:
    return min(rng.choice(SIDES), most), min(rng.choice((1, *SIDES)), most)


def chunk(name: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG with the right checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rng: Random) -> bytes:
    """Return a PNG whose header declares a large image."""
    depth = rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 6)), 0, 0, 1
    data = zlib.compress(bytes(rng.randrange(1, 2**20)))
    header = struct.pack(">IIBBBBB", *_sides(rng), *depth)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


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
    plain = saved(drawn(rng), "PNG")
    width, height = _sides(rng, 0x7FFFFFFF)
    control = chunk(b"acTL", struct.pack(">II", rng.choice((2, 2**31 - 1)), 0))
    frame = chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 0, 0))
    return plain[:33] + control + frame * rng.choice((1, 2, 1000)) + plain[33:]


def jpeg(rng: Random) -> bytes:
    """Return a JPEG whose frame declares a large image."""
    data = bytearray(saved(drawn(rng), "JPEG", progressive=rng.random() < 0.5))
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    data[frame + 5 : frame + 9] = struct.pack(">HH", *_sides(rng, 65_535))
    return bytes(data)


@cache
def _progressive(edge: int) -> bytes:
    return saved(Image.new("RGB", (edge, edge), (90, 120, 30)), "JPEG", progressive=True)


def scans(rng: Random) -> bytes:
    """Return a progressive JPEG whose last scan is repeated up to some thousand times."""
    whole = _progressive(rng.choice((64, 600, 2000, ORIGINAL_EDGE)))
    last = whole[whole.rindex(START_OF_SCAN) : -2]
    return whole[:-2] + last * min(rng.choice((30, 300, 3000)), 2**20 // len(last)) + whole[-2:]


def gif(rng: Random) -> bytes:
    """Return a GIF of a large canvas, or of many frames."""
    if rng.random() < 0.5:
        return animated("gif", 300)
    plain = bytearray(saved(drawn(rng, "P"), "GIF"))
    plain[6:10] = struct.pack("<HH", *_sides(rng, 65_535))
    return bytes(plain)


def bmp(rng: Random) -> bytes:
    """Return a BMP that declares a large image, or is run-length encoded."""
    size, bits, compression = rng.choice((40, 108, 124, 12, 2**31)), rng.choice((1, 4, 8, 24, 32)), rng.randrange(6)
    header = struct.pack("<IIIHHIIiiII", size, *_sides(rng), 1, bits, compression, 0, 1, 1, 0, 0)
    runs = b"\xff\x00" * rng.randrange(1, 2**16)
    return b"BM" + struct.pack("<IHHI", 54 + len(runs), 0, 0, rng.choice((54, 0, 2**31))) + header + runs


def tiff(rng: Random) -> bytes:
    """Return a TIFF whose directory declares what is not there, or leads back to itself."""
    width, height = _sides(rng)
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, rng.choice((1, 8, 16, 64, 65_535))),
        (259, 3, 1, rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 32_773, 34_712, 50_000))),
        (262, 3, 1, rng.choice((0, 1, 2, 3, 5, 6))),
        (273, 4, rng.choice((1, 2**31)), 8),
        (277, 3, 1, rng.choice((1, 3, 4, 65_535))),
        (278, 4, 1, rng.choice((1, height))),
        (279, 4, rng.choice((1, 2**31)), rng.choice((100, 2**32 - 1))),
        *([(322, 4, 1, 65_536), (323, 4, 1, 65_536)] if rng.random() < 0.3 else []),
    ]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    following = struct.pack("<I", rng.choice((0, 8, 2**31)))
    return b"II*\0" + struct.pack("<I", 8) + directory + following + rng.randbytes(64)


def webp(rng: Random) -> bytes:
    """Return a WebP of a large canvas, or of many frames."""
    if rng.random() < 0.3:
        return animated("webp", 100)
    width, height = _sides(rng, 2**24)
    edges = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    canvas = bytes([rng.choice((0, 2, 16, 18)), 0, 0, 0]) + edges
    inner = b"VP8X" + struct.pack("<I", 10) + canvas + saved(drawn(rng), "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(inner) + 4) + b"WEBP" + inner


def ppm(rng: Random) -> bytes:
    """Return a PPM that declares a large image, or more digits than a number has."""
    kind = rng.choice((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf", b"PF", b"P7"))
    most = rng.choice((b"255", b"65535", b"0", b"-1", b"9" * 5000))
    return kind + b"\n%d %d\n" % _sides(rng) + most + b"\n" + rng.randbytes(300)


def jpeg2000(rng: Random) -> bytes:
    """Return a JPEG 2000 whose boxes or codestream declare a large image, or tiles of one pixel."""
    data = bytearray(saved(drawn(rng), "JPEG2000"))
    width, height = _sides(rng)
    header, stream = data.find(b"ihdr") + 4, data.find(b"\xff\x51") + 6
    if rng.random() < 0.7:
        data[header : header + 8] = struct.pack(">II", height, width)
    if rng.random() < 0.7:
        data[stream : stream + 8] = struct.pack(">II", width, height)
        data[stream + 16 : stream + 24] = struct.pack(">II", *rng.choice(((1, 1), (width, height), (64, 64))))
    return bytes(data)


def avif(rng: Random) -> bytes:
    """Return an AVIF whose boxes declare a large image."""
    data = bytearray(saved(drawn(rng), "AVIF", speed=10))
    extents = data.find(b"ispe") + 8
    data[extents : extents + 8] = struct.pack(">II", *_sides(rng))
    return bytes(data)


BOMBS: dict[str, Callable[[Random], bytes]] = {
    "jpeg": jpeg,
    "jpeg of many scans": scans,
    "png": png,
    "png of long texts": png_text,
    "png of many frames": apng,
    "webp": webp,
    "bmp": bmp,
    "gif": gif,
    "tiff": tiff,
    "ppm": ppm,
    "jpeg 2000": jpeg2000,
    "avif": avif,
}


def photograph() -> bytes:
    """Return a small photograph that every server classifies."""
    return shipped("tests/cat.jpg").read_bytes()


def _mutated(name: str, rng: Random, size: int) -> bytes:
    moves = name in ANIMATED and rng.random() < 0.15
    return mutated(animated(name, 5) if moves else well_formed(name, rng), rng)


def _truncated(name: str, rng: Random, size: int) -> bytes:
    return truncated(well_formed(name, rng), rng)


def _padded(make: Callable[[Random], bytes], rng: Random, size: int) -> bytes:
    return make(rng) + bytes(size if rng.random() < 0.5 else 0)


def _long(name: str, rng: Random, size: int) -> bytes:
    """Return a long case of the corpus; behind a JPEG's there is a photograph, or the end."""
    ending = rng.choice((photograph()[2:], photograph()[2:], END_OF_IMAGE)) if "JPEG of" in name else b""
    return stretched(size, **CASES["long_images"][name]) + ending


# What takes seconds to make, and megabytes to send.
LARGE: dict[str, Make] = {
    **{f"49 megapixels: {name}": partial(lambda name, rng, size: flat(name, ORIGINAL_EDGE), name) for name in FLAT},
    **{
        f"as large as may be: {name}": partial(_padded, partial(lambda name, rng: largest(name), name)) for name in FLAT
    },
}
IMAGES: dict[str, Make] = {
    **{f"mutated images: {name}": partial(_mutated, name) for name in FORMATS},
    **{f"truncated images: {name}": partial(_truncated, name) for name in FORMATS},
    **{f"bombs: {name}": partial(_padded, make) for name, make in BOMBS.items()},
    **{f"parts: {name}": partial(_long, name) for name in CASES["long_images"]},
    "parts: random bytes": lambda rng, size: rng.choice((b"", b"\xff\xd8", b"BM", b"GIF89a")) + rng.randbytes(size),
    "a photograph: small": lambda rng, size: photograph(),
}

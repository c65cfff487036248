"""An input of the fuzzers, the hand-made cases of the corpus, and damage to well-formed bytes.

Hypothesis draws an input, by the input's seed and number.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import isqrt
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from PIL import Image

from deployments.ingress.settings import MOST_ELEMENTS
from deployments.transformer.decoding import BYTES_PER_PIXEL, USUAL_BYTES_PER_PIXEL
from deployments.transformer.transformer import TransformerSettings
from scripts.shipped import shipped

T = TypeVar("T")
# The most bytes of a request: the server's limit, less the bytes of a head.
MIB = 2**20
MOST_BYTES = 32 * MIB - 2**16
# The most images of a request, and the most bytes that all of them have together.
MOST_IMAGES, MOST_IMAGE_BYTES = 64, 23 * MIB
# Sizes and counts that parsers trip over.
AWKWARD = (0, 1, 2, 7, 8, 15, 16, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
# Headers are where parsers decide what to allocate.
HEADER_BYTES = 96
# A count that the server admits, just below the count that it refuses.
NEARLY = MOST_ELEMENTS - 64
REPEATED = re.compile(r"<<(.*?)\*(\d+)>>", re.DOTALL)
RANDOMS = st.integers(0, 2**32 - 1).map(Random)


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        where: the route or gRPC method that receives it.
        what: the hostile or large part, `<family>: <kind>`.
        content: all bytes of an HTTP connection, or a gRPC message, without protobuf's checks.
        key: the API key that it shows; empty for none.
        is_grpc: whether the content is a gRPC message.
        packed: whether gRPC compresses the message.
        whole: whether the request is complete, so that an answer is due. The client ends an incomplete one by closing.
    """

    where: str
    what: str
    content: bytes
    key: str = ""
    is_grpc: bool = False
    packed: bool = False
    whole: bool = True

    @property
    def size(self) -> int:
        """Bytes on the wire, without the frames of HTTP/2."""
        return len(zlib.compress(self.content)) if self.packed else len(self.content)


def family(what: str) -> str:
    """Return the first part of an input's `what`."""
    return what.partition(":")[0]


def drawn(values: SearchStrategy[T], number: str) -> T:
    """Draw the value that a number names."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=2, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(values)
    def keep(value: T) -> None:
        found.append(value)

    keep()
    # The first value is the simplest one, whatever the seed.
    return found[-1]


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
    """Return a long case of the corpus of about `size` bytes; the corpus explains the arguments."""
    count = max(1, size // len(unit + close))
    if cap:
        count = min(count, NEARLY // int(cap))
        unit += b" " * ((size // count - len(unit + close)) * (not close))
    if most:
        count = min(count, int(most))
    units = [unit.replace(b"%x", b"%x" % number) for number in range(count)] if b"%x" in unit else [unit * count]
    return first + b"".join(units) + last + close * count


def long_cases(group: str, sizes: SearchStrategy[int]) -> dict[str, SearchStrategy[bytes]]:
    """Return the long cases of a group of the corpus, by name."""
    return {name: st.builds(partial(stretched, **case), sizes) for name, case in CASES[group].items()}


def mutated(data: bytes, rng: Random) -> bytes:
    """Return the bytes with one to four parts removed, repeated, moved, filled, flipped, or made awkward numbers."""
    for _ in range(rng.choice((1, 1, 2, 4)) if data else 0):
        at = rng.randrange(rng.choice((min(len(data), HEADER_BYTES), len(data))))
        size = rng.choice((1, 2, 4, rng.randrange(1, 65), rng.randrange(1, max(2, len(data) // 8))))
        part, elsewhere = data[at : at + size], rng.randrange(len(data))
        replaced, removed = rng.choice(
            (
                (b"", size),
                (part * rng.choice((2, 3, 30)), size),
                (data[elsewhere : elsewhere + size], size),
                (rng.choice((b"\0", b"\xff")) * len(part), size),
                (rng.randbytes(min(size, 64)), 0),
                (bytes(byte ^ 1 << rng.randrange(8) for byte in part), size),
                (struct.pack(rng.choice(("<I", ">I")), rng.choice(AWKWARD)), 4),
                (struct.pack(rng.choice(("<H", ">H")), rng.choice(AWKWARD) & 0xFFFF), 2),
            )
        )
        data = data[:at] + replaced + data[at + removed :]
    return data


def damaged(data: bytes, rng: Random) -> bytes:
    """Return the bytes mutated, or only their beginning."""
    return rng.choice((mutated(data, rng), data[: rng.randrange(len(data) + 1)]))


def several(images: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    """Draw an image once, or as often as it fits into a request."""

    def repeated(image: bytes, count: int) -> list[bytes]:
        return [image] * min(count, max(1, MOST_IMAGE_BYTES // (len(image) + 1)))

    return st.builds(repeated, images, st.sampled_from((1, MOST_IMAGES)))


def zeros(size: int, wbits: int) -> bytes:
    """Return `size` compressed zeros, about a thousandth of the bytes; `wbits` is zlib's. One megabyte is repeated."""
    packer, block = zlib.compressobj(9, wbits=wbits), bytes(MIB)
    start = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    # The checksum at the end is wrong; a reader finds that out after it has unpacked everything.
    return start + repeated * (size // MIB - 1) + packer.flush()


# A JPEG of 49 megapixels is accepted: the limit is 50.
ORIGINAL_EDGE = 7000
SIZES = ((16, 16), (33, 47), (64, 64), (120, 80))
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
TEXT_BYTES = 64 * 1024 * 1024
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


def painted(rng: Random) -> Image.Image:
    """Paint a small image, as smooth as photographs are, in colour or grey."""
    seed = np.random.default_rng(rng.getrandbits(32))
    colours = Image.fromarray(seed.integers(0, 256, (4, 5, 3), np.uint8)).resize(rng.choice(SIZES))
    return colours.convert(rng.choice(("RGB", "L")))


@cache
def well_formed(name: str, number: int) -> bytes:
    """Return an image of a format, one of a dozen."""
    return saved(painted(Random(f"{name} {number % 12}")), name)


@cache
def animated(name: str, frames: int) -> bytes:
    """Return an animation; a format without animations has pages instead."""
    first, *more = (painted(Random(number)).convert("RGB").resize((24, 24)) for number in range(frames))
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
    plain, kind = well_formed("png", rng.randrange(12)), rng.choice((b"zTXt", b"iCCP", b"iTXt"))
    content = (b"comment\0\1\0\0\0" if kind == b"iTXt" else b"comment\0\0") + zeros(TEXT_BYTES, 15)
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return plain[:33] + chunk * rng.choice((1, 8)) + plain[33:]


def scans(rng: Random) -> bytes:
    """Return a progressive JPEG whose last scan is repeated up to some thousand times."""
    whole = flat("progressive jpeg", rng.choice((64, 600, 2000, ORIGINAL_EDGE)))
    last = whole[max(0, whole.rfind(START_OF_SCAN)) : -2]
    return whole[:-2] + last * min(rng.choice((30, 300, 3000)), 2**20 // len(last)) + whole[-2:]


BOMBS: dict[str, Callable[[Random], bytes]] = {
    "jpeg of many scans": scans,
    "png of long texts": png_text,
    "png of many pixels": lambda rng: flat("png", 20_000),
    "gif of many frames": lambda rng: animated("gif", 300),
    "webp of many frames": lambda rng: animated("webp", 100),
}


def _damaged(name: str, rng: Random) -> bytes:
    moves = name in ANIMATED and rng.random() < 0.15
    return damaged(animated(name, 5) if moves else well_formed(name, rng.randrange(12)), rng)


def hostile_images(sizes: SearchStrategy[int]) -> dict[str, SearchStrategy[bytes]]:
    """Return the kinds of images, by name; `sizes` are bytes of long images."""
    # A photograph continues a long JPEG.
    ends = {name: photograph()[2:] if "JPEG of" in name else b"" for name in long_cases("long_images", sizes)}
    return {
        "parts: none but a photograph": st.builds(photograph),
        "parts: random bytes": st.builds(Random.randbytes, RANDOMS, sizes),
        **{
            f"parts: {name}": st.builds(bytes.__add__, long, st.sampled_from((ends[name], END_OF_IMAGE)))
            for name, long in long_cases("long_images", sizes).items()
        },
        **{f"damaged images: {name}": RANDOMS.map(partial(_damaged, name)) for name in FORMATS},
        **{f"bombs: {name}": RANDOMS.map(bomb) for name, bomb in BOMBS.items()},
        # A large image takes seconds to make, and megabytes to send.
        **{f"large images: {name}": st.builds(largest, st.just(name)) for name in FORMATS},
    }

"""What an encoded image declares in its first bytes, read without a library: enough to tell what it may cost.

What is read here decides where an image waits and how much room it takes, never whether it is accepted: the transformer
reads headers again, with the library that decodes them.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

# JPEGs of no more pixels than this are decoded in the transformer's own process.
PLAIN_PIXELS = 16_000_000
# Frames of a JPEG, of whatever coding; C4, C8 and CC among them are other things.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that no length follows, and the one that a JPEG's pixels begin with.
BARE = frozenset({0x01, *range(0xD0, 0xD8)})
START_OF_SCAN = 0xDA
# A marker: any bytes that belong to nothing, fill bytes, and its own, as libjpeg looks for it.
MARKER = re.compile(rb"[^\xff]*+(?:\xff++\x00[^\xff]*+)*+\xff++([^\x00\xff])")
# Of a JPEG before its pixels: segments, and bytes that belong to none. Cameras write some dozens, and no such bytes; a
# colour profile may take 255.
MOST_SEGMENTS, MOST_FILL = 1024, 4096
NUMBER = re.compile(rb"\d{1,10}")
# How far into a file the formats that have no fixed place for it are looked through.
MOST_SEARCHED = 4096


class Declared(NamedTuple):
    """What is known of an image before it is decoded.

    Attributes:
        pixels: what it declares; 0 where it is no image, or does not say.
        is_plain: whether it is a JPEG of at most `PLAIN_PIXELS`: what is sent most, and decoded where it is. Everything
            else is decoded in a process of its own, and waits in a queue of its own.
    """

    pixels: int = 0
    is_plain: bool = False


def declared(image: bytes) -> Declared:
    """What an image declares; a bounded part of it is looked at."""
    if image.startswith(b"\xff\xd8"):
        width, height = jpeg_size(image) or (0, 0)
        return Declared(width * height, 0 < width * height <= PLAIN_PIXELS)
    return Declared(_pixels(image))


def jpeg_size(image: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG; None if it does not come to its pixels within `MOST_SEGMENTS` and `MOST_FILL`."""
    position, fill, size = 2, MOST_FILL, None
    for _ in range(MOST_SEGMENTS):
        found = MARKER.match(image, position, position + fill + 2)
        if found is None:
            return None
        marker, end = found[1][0], found.end()
        fill -= end - 2 - position
        if marker == START_OF_SCAN:
            return size
        if marker in BARE:
            position = end
            continue
        if marker in FRAMES and size is None and end + 7 <= len(image):
            height, width = struct.unpack_from(">HH", image, end + 3)
            size = width, height
        position = end + max(2, int.from_bytes(image[end : end + 2]))
    return None


def _pixels(image: bytes) -> int:
    """The pixels that an image of another kind declares; 0 where it is none, or does not say."""
    start = image[:12]
    try:
        if start.startswith(b"\x89PNG"):
            return _product(struct.unpack_from(">II", image, 16))
        if start.startswith(b"GIF8"):
            return _product(struct.unpack_from("<HH", image, 6))
        if start.startswith(b"BM"):
            return _product(struct.unpack_from("<ii", image, 18))
        if start[:1] == b"P" and start[1:2].isdigit():
            return _product([int(number) for number in NUMBER.findall(image, 2, MOST_SEARCHED)[:2]])
        if start.startswith(b"RIFF"):
            return _webp(image)
        if start[:4] in {b"II*\0", b"MM\0*"}:
            return _tiff(image)
        return max(_behind(image, b"ispe", 4), _behind(image, b"ihdr", 0), _behind(image, b"\xff\x51", 4))
    except struct.error:
        return 0


def _product(sides: tuple[int, ...] | list[int]) -> int:
    return abs(sides[0] * sides[1]) if len(sides) == 2 else 0


def _webp(image: bytes) -> int:
    kind = image[12:16]
    if kind == b"VP8X":
        return (1 + int.from_bytes(image[24:27], "little")) * (1 + int.from_bytes(image[27:30], "little"))
    if kind == b"VP8L":
        [bits] = struct.unpack_from("<I", image, 21)
        return _product(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
    width, height = struct.unpack_from("<HH", image, 26)
    return _product((width & 0x3FFF, height & 0x3FFF))


def _tiff(image: bytes) -> int:
    order = "<" if image.startswith(b"II") else ">"
    [directory] = struct.unpack_from(f"{order}I", image, 4)
    [entries] = struct.unpack_from(f"{order}H", image, directory)
    sides = {}
    for number in range(min(entries, 64)):
        tag, kind = struct.unpack_from(f"{order}HH", image, directory + 2 + 12 * number)
        if tag in {256, 257}:
            [sides[tag]] = struct.unpack_from(order + ("H" if kind == 3 else "I"), image, directory + 10 + 12 * number)
    return _product(list(sides.values()))


def _behind(image: bytes, name: bytes, skipped: int) -> int:
    """Two sides of 32 bits, so many bytes behind a name; of several, the largest."""
    largest, position = 0, image.find(name, 0, MOST_SEARCHED)
    while position >= 0:
        if position + len(name) + skipped + 8 <= len(image):
            largest = max(largest, _product(struct.unpack_from(">II", image, position + len(name) + skipped)))
        position = image.find(name, position + 1, MOST_SEARCHED)
    return largest

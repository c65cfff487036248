"""What an encoded image declares in its first bytes, read without a library: enough to tell what it may cost.

The probe decides where an image waits and what it counts for, never whether it is accepted: the transformer
reads headers again, with the library that decodes them.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

# JPEGs within these are decoded in the transformer's own process, which takes some milliseconds, so that a request with
# 64 of them holds others up no longer than one large image would. Bytes and scans bound a JPEG in several scans: its
# own bytes, and those that a decoder keeps. Encoders write ten scans, but each is decoded over the whole image, even an
# empty one.
PLAIN_PIXELS, PLAIN_BYTES, PLAIN_SCANS = 1_000_000, 1024 * 1024, 20
# A JPEG of so many pixels, and so many bytes of its own and a decoder's, is decoded in about 0.3 ms. To wake a thread
# for it, and the event loop afterwards, takes longer than others would wait for that.
QUICK_PIXELS, QUICK_BYTES = 256 * 256, 64 * 1024
# What a pixel costs that is decoded at a smaller scale, in pixels that are not.
SCALED_COST = 1 / 8
# Frames of a JPEG, of whatever coding; C4, C8 and CC among them are other things.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE, LOSSLESS = frozenset({0xC2, 0xC6, 0xCA, 0xCE}), frozenset({0xC3, 0xC7, 0xCB, 0xCF})
# libjpeg keeps every coefficient of a JPEG in several scans, 2 bytes each. It decodes a lossless one at full scale, and
# OpenCV copies that.
COEFFICIENT_BYTES, LOSSLESS_BYTES = 2, 6
# Markers that no length follows, and the one that a JPEG's pixels begin with.
BARE = frozenset({0x01, *range(0xD0, 0xD8)})
START_OF_SCAN = b"\xff\xda"
# A marker: any bytes that belong to nothing, fill bytes, and its own, as libjpeg looks for it.
MARKER = re.compile(rb"[^\xff]*+(?:\xff++\x00[^\xff]*+)*+\xff++([^\x00\xff])")
# Of a JPEG before its pixels: segments, and bytes that belong to none. Cameras write some dozens, and no such bytes; a
# colour profile may take 255.
MOST_SEGMENTS, MOST_FILL = 1024, 4096
NUMBER, COMMENT = re.compile(rb"\d{1,10}"), re.compile(rb"#[^\r\n]*")
# How far into a file the formats that have no fixed place for it are looked through.
MOST_SEARCHED = 4096
# The marker of JPEG 2000 that declares the size, and its fields: its length, a capability, 8 extents, the components.
SIZ, SIZ_FIELDS = b"\xff\x51", struct.Struct(">HH8IH")


class Jpeg(NamedTuple):
    """What a JPEG declares before its pixels; its sides are in pixels.

    Attributes:
        kept: what a decoder keeps of it at whatever scale it decodes, bytes: 0 of a usual JPEG, whose one scan has all.
    """

    width: int
    height: int
    kept: int = 0


class ImageProbe(NamedTuple):
    """The facts known of an image before it is decoded.

    Attributes:
        pixels: what it declares; 0 where it is no image, or does not say.
        is_plain: whether it is a JPEG within `PLAIN_PIXELS`, `PLAIN_BYTES` and `PLAIN_SCANS`: the most frequent images,
            decoded where it is. Everything else is decoded in a process of its own, and waits in a queue of its own.
        isolated_pixels: what decoding it in a process of its own costs, in pixels of a PNG; 0 where it is plain.
        jpeg: what its markers declare, if it is a JPEG that comes to its pixels.
        is_quick: whether it is plain and within `QUICK_PIXELS` and `QUICK_BYTES`.
    """

    pixels: int = 0
    is_plain: bool = False
    isolated_pixels: int = 0
    jpeg: Jpeg | None = None
    is_quick: bool = False


def probe(image: bytes) -> ImageProbe:
    """Read what an image declares, in a bounded part of it; scans are counted in at most `PLAIN_BYTES`."""
    if not image.startswith(b"\xff\xd8"):
        pixels = _pixels(image)
        return ImageProbe(pixels, isolated_pixels=pixels)
    if (jpeg := read_jpeg(image)) is None:
        return ImageProbe()
    pixels = jpeg.width * jpeg.height
    if 0 < pixels <= PLAIN_PIXELS:
        # libjpeg refuses a second scan where the first has all.
        is_one_scan, is_short = not jpeg.kept, max(len(image), jpeg.kept) <= PLAIN_BYTES
        if is_one_scan or (is_short and image.count(START_OF_SCAN) <= PLAIN_SCANS):
            is_quick = pixels <= QUICK_PIXELS and len(image) + jpeg.kept <= QUICK_BYTES
            return ImageProbe(pixels, is_plain=True, jpeg=jpeg, is_quick=is_quick)
    return ImageProbe(pixels, isolated_pixels=pixels if jpeg.kept else round(pixels * SCALED_COST), jpeg=jpeg)


def read_jpeg(image: bytes) -> Jpeg | None:
    """Read a JPEG's markers; None if it does not come to its pixels within `MOST_SEGMENTS` and `MOST_FILL`."""
    position, fill, frame = 2, MOST_FILL, 0
    for _ in range(MOST_SEGMENTS):
        found = MARKER.match(image, position, position + fill + 2)
        if found is None:
            return None
        marker, end = found[1][0], found.end()
        fill -= end - 2 - position
        if marker == START_OF_SCAN[1]:
            return _jpeg(image, frame, end) if frame and end + 3 <= len(image) else None
        if marker in BARE:
            position = end
            continue
        if marker in FRAMES and not frame and end + 8 <= len(image):
            frame = end
        position = end + max(2, int.from_bytes(image[end : end + 2]))
    return None


def read_netpbm(image: bytes) -> list[int]:
    """Read the first numbers of a PBM, PGM or PPM, at most three: its sides, and of the last two its maximum."""
    return [int(number) for number in NUMBER.findall(COMMENT.sub(b"", image[2:MOST_SEARCHED]))[:3]]


def _jpeg(image: bytes, frame: int, scan: int) -> Jpeg:
    """Read what a JPEG's frame and its first scan declare, which begin behind their markers."""
    height, width, components = struct.unpack_from(">HHB", image, frame + 3)
    coding = image[frame - 1]
    kept = LOSSLESS_BYTES if coding in LOSSLESS else 0.0
    if coding in PROGRESSIVE or image[scan + 2] < components:
        # Of each component, how often it is sampled across and down, in 4 bits each.
        factors = [(byte >> 4, byte & 15) for byte in image[frame + 9 : frame + 8 + 3 * components : 3]]
        across, down = (max((pair[axis] for pair in factors), default=1) or 1 for axis in (0, 1))
        kept = COEFFICIENT_BYTES * sum(a * b for a, b in factors) / (across * down)
    return Jpeg(width, height, int(kept * width * height))


def _pixels(image: bytes) -> int:
    """Read the pixels that another image declares; 0 where it is no image, or declares none."""
    start = image[:12]
    try:
        if start.startswith(b"\x89PNG"):
            return _product(struct.unpack_from(">II", image, 16))
        if start.startswith(b"GIF8"):
            return _product(struct.unpack_from("<HH", image, 6))
        if start.startswith(b"BM"):
            return _product(struct.unpack_from("<ii", image, 18))
        if start[:1] == b"P" and start[1:2].isdigit():
            return _product(read_netpbm(image)[:2])
        if start.startswith(b"RIFF"):
            return _webp(image)
        if start[:2] in {b"II", b"MM"}:
            return _tiff(image)
        return max(_largest(image, b"ispe", 4), _largest(image, b"ihdr", 0), _jpeg_2000(image))
    # A BigTIFF's directory may be where no index leads.
    except (struct.error, OverflowError):
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
    order, is_big = "<" if image.startswith(b"II") else ">", b"+" in image[2:4]
    # Where the directory's position is, the types of it and of the number of entries, and an entry's bytes and value.
    at, pointer, count, size, value = (8, "Q", "Q", 20, 12) if is_big else (4, "I", "H", 12, 8)
    [directory] = struct.unpack_from(order + pointer, image, at)
    [entries] = struct.unpack_from(order + count, image, directory)
    first, sides = directory + struct.calcsize(count), {}
    for entry in range(first, first + size * min(entries, 64), size):
        tag, kind = struct.unpack_from(f"{order}HH", image, entry)
        if tag in {256, 257}:
            [sides[tag]] = struct.unpack_from(order + {3: "H", 16: "Q"}.get(kind, "I"), image, entry + value)
    return _product(list(sides.values()))


def _jpeg_2000(image: bytes) -> int:
    """Multiply the sides behind each marker SIZ whose length fits its components, as decoders ask; take the largest."""
    markers = [SIZ_FIELDS.unpack_from(image, place) for place in _behind(image, SIZ, SIZ_FIELDS.size)]
    fitting = (each for each in markers if each[0] == SIZ_FIELDS.size + 3 * each[-1])
    return max((width * height for _, _, width, height, *_ in fitting), default=0)


def _largest(image: bytes, name: bytes, skipped: int) -> int:
    """Multiply the two sides of 32 bits that stand `skipped` bytes behind a name; take the largest product."""
    places = _behind(image, name, skipped + 8)
    return max((_product(struct.unpack_from(">II", image, place + skipped)) for place in places), default=0)


def _behind(image: bytes, name: bytes, size: int) -> Iterator[int]:
    """Find the places behind a name that so many bytes follow, as far as a file is looked through."""
    position = image.find(name, 0, MOST_SEARCHED)
    while 0 <= position <= len(image) - len(name) - size:
        yield position + len(name)
        position = image.find(name, position + 1, MOST_SEARCHED)

"""Small files that ask for much: declared sizes, scans, frames, compressed texts, structures that lead nowhere."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache
from random import Random

from PIL import Image

from lab.faults.hostile.mutations import zeros
from lab.faults.hostile.pictures import animated, drawn, saved

SIDES = (20_000, 65_500, 65_535, 2**31 - 1, 2**32 - 1)
START_OF_SCAN = b"\xff\xda"
TEXT_BYTES = 64 * 1024 * 1024


def _sides(rng: Random) -> tuple[int, int]:
    return rng.choice(SIDES), rng.choice((1, *SIDES))


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG, its checksum right."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rng: Random) -> bytes:
    """A PNG whose header declares what it does not hold."""
    width, height = _sides(rng)
    header = struct.pack(">IIBBBBB", width, height, rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 6)), 0, 0, 1)
    data = zlib.compress(bytes(rng.randrange(1, 2**20)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@cache
def _compressed_text() -> bytes:
    return zeros(TEXT_BYTES, 15)


def png_text(rng: Random) -> bytes:
    """A small PNG with 64 MB of text, or a colour profile, in a few kilobytes."""
    plain = saved(drawn(rng), "PNG")
    kind = rng.choice((b"zTXt", b"iCCP", b"iTXt"))
    prefix = b"comment\0\1\0\0\0" if kind == b"iTXt" else b"comment\0\0"
    return plain[:33] + chunk(kind, prefix + _compressed_text()) * rng.choice((1, 8)) + plain[33:]


def apng(rng: Random) -> bytes:
    """A PNG that says that it has thousands of frames."""
    plain = saved(drawn(rng), "PNG")
    control = chunk(b"acTL", struct.pack(">II", rng.choice((2, 2**31 - 1)), 0))
    width, height = _sides(rng)
    frame = struct.pack(">IIIIIHHBB", 0, width & 0x7FFFFFFF, height & 0x7FFFFFFF, 0, 0, 1, 1, 0, 0)
    return plain[:33] + control + chunk(b"fcTL", frame) * rng.choice((1, 2, 1000)) + plain[33:]


def jpeg(rng: Random) -> bytes:
    """A JPEG whose frame declares what it does not hold."""
    data = bytearray(saved(drawn(rng), "JPEG", progressive=rng.random() < 0.5))
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    width, height = (min(side, 65_535) for side in _sides(rng))
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@cache
def _progressive(edge: int) -> bytes:
    return saved(Image.new("RGB", (edge, edge), (90, 120, 30)), "JPEG", progressive=True)


def scans(rng: Random) -> bytes:
    """A progressive JPEG whose last scan is repeated up to some thousand times."""
    whole = _progressive(rng.choice((64, 600, 2000, 7000)))
    last = whole[whole.rindex(START_OF_SCAN) : -2]
    return whole[:-2] + last * min(rng.choice((30, 300, 3000)), 2**20 // len(last)) + whole[-2:]


def gif(rng: Random) -> bytes:
    """A GIF of a large canvas, or of many frames."""
    if rng.random() < 0.5:
        return animated("gif", 300)
    width, height = (min(side, 65_535) for side in _sides(rng))
    plain = bytearray(saved(drawn(rng, "P"), "GIF"))
    plain[6:10] = struct.pack("<HH", width, height)
    return bytes(plain)


def bmp(rng: Random) -> bytes:
    """A BMP that declares what it does not hold, or is run-length encoded to a line of it."""
    width, height = _sides(rng)
    size = rng.choice((40, 108, 124, 12, 2**31))
    compression = rng.choice((0, 1, 2, 3, 4, 5))
    header = struct.pack(
        "<IIIHHIIiiII", size, width, height, 1, rng.choice((1, 4, 8, 24, 32)), compression, 0, 1, 1, 0, 0
    )
    runs = b"\xff\x00" * rng.randrange(1, 2**16)
    return b"BM" + struct.pack("<IHHI", 54 + len(runs), 0, 0, rng.choice((54, 0, 2**31))) + header + runs


def tiff(rng: Random) -> bytes:
    """A TIFF whose directory lies, or leads back to itself."""
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
    return (
        b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", rng.choice((0, 8, 2**31))) + rng.randbytes(64)
    )


def webp(rng: Random) -> bytes:
    """A WebP of a large canvas, or of many frames."""
    if rng.random() < 0.3:
        return animated("webp", 100)
    width, height = (min(side, 2**24) - 1 for side in _sides(rng))
    canvas = bytes([rng.choice((0, 2, 16, 18)), 0, 0, 0]) + width.to_bytes(3, "little") + height.to_bytes(3, "little")
    inner = b"VP8X" + struct.pack("<I", 10) + canvas + saved(drawn(rng), "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(inner) + 4) + b"WEBP" + inner


def ppm(rng: Random) -> bytes:
    """A PPM that declares what it does not hold, or more digits than a number has."""
    width, height = _sides(rng)
    kind = rng.choice((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf", b"PF", b"P7"))
    most = rng.choice((b"255", b"65535", b"0", b"-1", b"9" * 5000))
    return kind + b"\n%d %d\n" % (width, height) + most + b"\n" + rng.randbytes(300)


def jpeg2000(rng: Random) -> bytes:
    """A JPEG 2000 whose boxes or codestream declare what they do not hold, tiles of a pixel among it."""
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
    """An AVIF whose boxes declare what they do not hold."""
    data = bytearray(saved(drawn(rng), "AVIF", speed=10))
    width, height = _sides(rng)
    extents = data.find(b"ispe") + 8
    data[extents : extents + 8] = struct.pack(">II", width, height)
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

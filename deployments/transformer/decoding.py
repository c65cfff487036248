"""Decodes an image and makes its pixels for each preprocessing."""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cv2
import numpy as np
from PIL import Image, ImageOps

from deployments.contract.errors import ImageTooLarge, InvalidImage
from deployments.contract.image_probe import PLAIN_PIXELS, START_OF_SCAN, Jpeg, read_jpeg, read_netpbm
from deployments.contract.payload import Decoded, Pixels
from deployments.contract.preprocessing import Preprocessing, Size
from deployments.transformer.resampling import PILLOW, resize

# Pillow's own limit would apply before ours.
Image.MAX_IMAGE_PIXELS = None
# OpenCV's own threads would compete with the transformer's; its log and Pillow's would report each damaged image.
cv2.setNumThreads(1)
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
warnings.filterwarnings("ignore", module="PIL")

# The formats besides JPEG that both Pillow and OpenCV read.
FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# The memory that decoding takes at its peak, as measured, bytes per pixel at full scale (OpenCV 5.0).
USUAL_BYTES_PER_PIXEL = 12
BYTES_PER_PIXEL = {"JPEG": 6, "PNG": 6, "WEBP": 6, "JPEG2000": 20, "AVIF": 21}
# What Pillow's filters take besides the decoded image, bytes for each pixel that they read.
COPIED_BYTES_PER_PIXEL = 6
# How many scans a JPEG of the largest size may have; encoders write ten.
MAX_SCANS = 20
# A PGM and a PPM whose numbers are written as text.
PLAIN_NETPBM = frozenset({b"P2", b"P3"})
# What a file of these formats ends with.
END_OF_JPEG, END_OF_PNG = b"\xff\xd9", b"\0\0\0\0IEND\xaeB`\x82"
NO_END = "the file ends without its end marker; every pixel was there"
# Bits that no encoder wrote, and their complement.
FILLER = b"\x5a\x17\xc4\x93\x6e\x2b\xd1\x38" * 128
FILLERS = FILLER, bytes(byte ^ 0xFF for byte in FILLER)
# How other formats, and kinds of formats, begin. https://www.garykessler.net/library/file_sigs.html
READ = "a JPEG, PNG, WebP, BMP, GIF, TIFF, PNM, JPEG 2000 or AVIF file"
OTHERS = {
    "a HEIF (HEIC) file": re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL),
    "a JPEG XL file": re.compile(rb"\xff\x0a|\0\0\0\x0cJXL "),
    "an SVG": re.compile(
        rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?(<!DOCTYPE svg[^>]*>\s*)?<svg\b", re.DOTALL
    ),
    "a PDF": re.compile(rb"%PDF-"),
    "an ICO file": re.compile(rb"\0\0[\x01\x02]\0"),
    "a TIFF file that is damaged, or has more than 16 bits for each colour": re.compile(rb"II[*+]\0|MM\0[*+]"),
}
MOST_LOOKED_AT = 1024
# What Pillow reads in some modes, and OpenCV does not. A PGM of 16 bits, which it does, has the mode I, too.
LARGE_NUMBERS = {"F": "floating-point numbers", "I": "numbers of 32 bits"}
REDUCED_JPEG = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
# How many times larger than needed an image is left for Pillow's filters, which would otherwise differ by two levels.
REDUCING_GAP = 2

# These read a few of the image's own pixels for each of theirs; a smaller scale would average others into them.
SAMPLING = frozenset({"linear", "cubic", "nearest"})


class SizeLimits(Protocol):
    """The limits of an image, checked before a pixel is decoded; see `TransformerSettings`."""

    @property
    def max_image_bytes(self) -> int:
        """The limit of an image's encoded size, bytes."""
        ...

    @property
    def max_image_pixels(self) -> int:
        """The limit of the pixels that an image declares."""
        ...


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an image file; its sides are in pixels.

    Attributes:
        bytes_per_pixel: the memory that decoding takes for each pixel of the scale that it is decoded at.
        kept: the memory that decoding takes besides, at every scale, bytes.
        is_pillows: whether Pillow decodes it, because OpenCV 5.0 does not turn an AVIF as the file says, and darkens a
            TIFF by its alpha.
        white: the maximum of a PGM or PPM by which OpenCV 5.0 does not scale, else 0.
    """

    width: int
    height: int
    is_jpeg: bool
    bytes_per_pixel: int = USUAL_BYTES_PER_PIXEL
    kept: int = 0
    is_pillows: bool = False
    white: int = 0

    def scale(self, wanted: Sequence[Preprocessing]) -> int:
        """Return the factor by which decoding reduces the image: 1, 2, 4 or 8."""
        if not self.is_jpeg:
            return 1
        # How many times larger the image is than any of these pixels need.
        spare = math.inf
        for each in wanted:
            side = max(self.width, self.height) if each.resize == "letterbox" else min(self.width, self.height)
            kept = each.crop_ratio if each.resize == "crop" else 1
            gap = REDUCING_GAP if each.interpolation in PILLOW else 1
            spare = min(spare, 1 if each.interpolation in SAMPLING else side * kept / max(each.size) / gap)
        return next((factor for factor in REDUCED_JPEG if spare >= factor), 1)

    def memory(self, wanted: Sequence[Preprocessing]) -> int:
        """Estimate the most memory that decoding for these pixels takes, bytes."""
        pixels, short, resampled = self.width * self.height, min(self.width, self.height), 0.0
        for each in wanted:
            if each.interpolation in PILLOW:
                part = (each.crop_ratio * short) ** 2 * max(each.size) / min(each.size)
                resampled = max(resampled, min(pixels, part) if each.resize == "crop" else pixels)
        most = max(pixels * self.bytes_per_pixel, 3 * pixels + COPIED_BYTES_PER_PIXEL * resampled)
        return int(most) // self.scale(wanted) ** 2 + self.kept


def read_header(encoded: bytes, limits: SizeLimits, jpeg: Jpeg | None = None) -> Header:
    """Read an image's header; `jpeg` is what the image's markers declare, if they were read before.

    Raises:
        InvalidImage: it is no image.
        ImageTooLarge: it exceeds the limit on bytes, on declared pixels, or on a JPEG's scans.
    """
    if not encoded:
        raise InvalidImage("the image has no bytes; send the file as the body")
    if len(encoded) > limits.max_image_bytes:
        most = f"at most {limits.max_image_bytes} are accepted (transformer.max_image_bytes)"
        raise ImageTooLarge(f"the image has {len(encoded)} bytes; {most}")
    if encoded.startswith(b"\xff\xd8"):
        if (jpeg := jpeg or read_jpeg(encoded)) is None:
            raise InvalidImage(
                "the image is truncated or damaged before its pixels; send the whole file, or save it anew"
            )
        header = Header(jpeg.width, jpeg.height, True, BYTES_PER_PIXEL["JPEG"], jpeg.kept)
    else:
        header = _header_by_pillow(encoded)
    if header.width * header.height > limits.max_image_pixels:
        raise ImageTooLarge(
            f"the image declares {header.width} x {header.height} pixels; "
            f"at most {limits.max_image_pixels} in all are accepted (transformer.max_image_pixels)"
        )
    # Each scan of a JPEG is decoded over the whole image, though it may have but a few bytes.
    if header.is_jpeg:
        scans = encoded.count(START_OF_SCAN)
        if scans * header.width * header.height > MAX_SCANS * limits.max_image_pixels:
            raise ImageTooLarge(
                f"the JPEG has {scans} scans of {header.width} x {header.height} pixels; save it with fewer, such as "
                "a baseline JPEG"
            )
    return header


def _header_by_pillow(encoded: bytes) -> Header:
    """Read the header of another image than a JPEG, whose empty segments take Pillow a thousand times their bytes."""
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            weight = BYTES_PER_PIXEL.get(image.format or "", USUAL_BYTES_PER_PIXEL)
            if getattr(image, "is_animated", False):
                weight = max(weight, USUAL_BYTES_PER_PIXEL)
            is_pillows = image.format == "AVIF" or (image.format == "TIFF" and "A" in image.getbands())
            header = Header(*image.size, False, weight, 0, is_pillows, _white(encoded))
            numbers = LARGE_NUMBERS.get(image.mode if image.format == "TIFF" else image.mode.replace("I", ""))
    # Pillow's parsers raise errors of many types.
    except Exception as err:
        found = (name for name, start in OTHERS.items() if start.match(encoded[:MOST_LOOKED_AT]))
        raise InvalidImage(f"the body is {next(found, 'not an image')}; send {READ}") from err
    if numbers is not None:
        raise InvalidImage(f"the image's pixels are {numbers}; save it with 8 or 16 bits for each colour")
    return header


def _white(encoded: bytes) -> int:
    """See `Header`; raises ValueError for a PGM or PPM that declares no maximum."""
    if encoded[:2] not in {*PLAIN_NETPBM, b"P5", b"P6"}:
        return 0
    _, _, white = read_netpbm(encoded)
    is_scaled = white in {255, 65_535} or (white < 255 and encoded[:2] in PLAIN_NETPBM)
    return 0 if is_scaled else white


def decode(
    encoded: bytes, header: Header, wanted: Sequence[Preprocessing], later: Sequence[Preprocessing] = ()
) -> Decoded:
    """Decode an image once, and make its pixels for each preprocessing: the standard evaluation transforms.

    EXIF orientation is honoured, grey becomes colour, alpha is dropped. A JPEG much larger than needed is decoded at
    1/2, 1/4 or 1/8 scale, which libjpeg does in the frequency domain in less time than at full scale.

    Args:
        encoded: the file's bytes, in any format that OpenCV decodes.
        header: the file's header, by `read_header`.
        wanted: the preprocessings; if there are none, the image is decoded all the same, to find out whether it can be.
        later: further ones, whose pixels the result can make.

    Returns:
        BGR pixels, uint8 [height,width,3], for each preprocessing, in order; a file that lacks no more than its end
        marker has a warning.

    Raises:
        InvalidImage: the image is damaged or truncated.
    """
    scale = header.scale([*wanted, *later])
    flags = REDUCED_JPEG.get(scale, cv2.IMREAD_COLOR)
    if header.white:
        flags |= cv2.IMREAD_ANYDEPTH
    # OpenCV 5.0 wants white space behind the last number.
    if encoded[:2] in PLAIN_NETPBM:
        encoded += b"\n"
    image = None if header.is_pillows else _by_opencv(encoded, flags)
    # OpenCV 5.0 fails on a GIF whose code table is full.
    if header.is_pillows or (image is None and encoded.startswith(b"GIF8")):
        image = _by_pillow(encoded)
    warning = ""
    if image is None and (image := _without_end(encoded, header, flags)) is not None:
        warning = NO_END
    if image is None:
        raise InvalidImage("the image is truncated or damaged; send the whole file")
    if header.white:
        image = cv2.convertScaleAbs(image, alpha=255 / header.white)
    pixels = image.astype(np.uint8, copy=False)
    full = None if scale == 1 else _upright(header, pixels)
    make = partial(resize, pixels, full=full)
    return Decoded([make(each) for each in wanted], (header.width, header.height), warning, make if later else None)


def _upright(header: Header, image: Pixels) -> Size:
    """Return the height and width that the image has at full scale, which its file may say is turned."""
    is_turned = (header.height < header.width) != (image.shape[0] < image.shape[1])
    return (header.width, header.height) if is_turned else (header.height, header.width)


def _by_opencv(encoded: bytes, flags: int) -> Any:
    """Decode an image by OpenCV; None if it is damaged."""
    try:
        return cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as err:
        raise InvalidImage("the image can't be decoded; send it in another format") from err


def _without_end(encoded: bytes, header: Header, flags: int) -> Any:
    """Decode a PNG, or a JPEG in one scan, that lacks no more than its end marker; None for another image.

    libpng refuses a PNG that lacks pixels. libjpeg makes them up, of the bits that follow: all of a JPEG is there if it
    does not matter which ones do.
    """
    if encoded.startswith(b"\x89PNG"):
        parts = (size for size in range(len(END_OF_PNG)) if encoded.endswith(END_OF_PNG[:size]))
        tries = (_by_opencv(encoded + END_OF_PNG[size:], flags) for size in parts)
        return next((image for image in tries if image is not None), None)
    if not header.is_jpeg or header.kept:
        return None
    encoded = encoded.removesuffix(END_OF_JPEG[:1])
    # At a smaller scale, bits of the last blocks may not matter: of a large image, too few to notice.
    fully = cv2.IMREAD_COLOR if header.width * header.height <= PLAIN_PIXELS else flags
    # One image at a time is in memory: the header says how much that takes.
    one, other = (_digest(_by_opencv(encoded + filler + END_OF_JPEG, fully)) for filler in FILLERS)
    return _by_opencv(encoded + END_OF_JPEG, flags) if one == other != b"" else None


def _digest(image: Any) -> bytes:
    """Return a digest of an image's pixels; empty for no image."""
    return b"" if image is None else hashlib.blake2b(image).digest()


def _by_pillow(encoded: bytes) -> Pixels | None:
    """Decode an AVIF, a GIF or a TIFF by Pillow; None if it is damaged."""
    try:
        with Image.open(io.BytesIO(encoded), formats=("AVIF", "GIF", "TIFF")) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            return cv2.cvtColor(np.asarray(upright), cv2.COLOR_RGB2BGR).astype(np.uint8, copy=False)
    # Pillow's parsers raise errors of many types.
    except Exception:
        return None

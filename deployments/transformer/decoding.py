"""Decodes an image and makes pixels of it, as each preprocessing wants them."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from PIL import Image

from deployments.contract.declared import jpeg_size
from deployments.contract.errors import ImageTooLarge, InvalidImage
from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing, Size

# Pillow reads the headers here, and its own pixel limit would answer before ours.
Image.MAX_IMAGE_PIXELS = None
# OpenCV's own threads would compete with the transformer's, and it prints what is wrong with an image.
cv2.setNumThreads(1)
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# What both Pillow and OpenCV read, besides JPEGs.
FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# What decoding was measured to take at its peak, bytes a pixel, and for formats that take more.
USUAL_BYTES_PER_PIXEL = 12
BYTES_PER_PIXEL = {"JPEG2000": 18, "AVIF": 18}
# The marker that begins a scan of a JPEG, and the scans of the largest image that are decoded; encoders make about ten.
START_OF_SCAN, MOST_SCANS = b"\xff\xda", 20
REDUCED_JPEG = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
INTERPOLATIONS = {"linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC, "nearest": cv2.INTER_NEAREST}


class Limits(Protocol):
    """What an image may be: `TransformerSettings`, without what a decoding process need not import."""

    @property
    def max_image_bytes(self) -> int:
        """Encoded size of an image, bytes."""
        ...

    @property
    def max_image_pixels(self) -> int:
        """Declared size, pixels."""
        ...


@dataclass(frozen=True, slots=True)
class Header:
    """What an image file declares: its width and height in pixels, whether it is a JPEG, and what a pixel may take."""

    width: int
    height: int
    is_jpeg: bool
    bytes_per_pixel: int = USUAL_BYTES_PER_PIXEL

    @property
    def memory(self) -> int:
        """What decoding it takes at most, bytes."""
        return self.width * self.height * self.bytes_per_pixel


def check_size(encoded: bytes, limits: Limits) -> None:
    """Raise InvalidImage for no bytes, ImageTooLarge for more than the limit."""
    if not encoded:
        raise InvalidImage("the image has no bytes; send the file as the body")
    if len(encoded) > limits.max_image_bytes:
        raise ImageTooLarge(f"the image has {len(encoded)} bytes; at most {limits.max_image_bytes} are accepted")


def inspect(encoded: bytes, limits: Limits) -> Header:
    """Read an image's header.

    Raises:
        InvalidImage: no image.
        ImageTooLarge: over the limit on bytes, on declared pixels, or on what a JPEG's scans make of them.
    """
    check_size(encoded, limits)
    header = _header(encoded)
    if header.width * header.height > limits.max_image_pixels:
        raise ImageTooLarge(
            f"the image declares {header.width} x {header.height} pixels; "
            f"at most {limits.max_image_pixels} in all are accepted"
        )
    # Each scan of a JPEG passes over the whole image again, and a few bytes are enough for one.
    if header.is_jpeg:
        scans = encoded.count(START_OF_SCAN)
        if scans * header.width * header.height > MOST_SCANS * limits.max_image_pixels:
            raise ImageTooLarge(
                f"the JPEG has {scans} scans of {header.width} x {header.height} pixels; save it with fewer, such as "
                "a baseline JPEG"
            )
    return header


def _header(encoded: bytes) -> Header:
    """A JPEG's header is read here: Pillow keeps every segment of one, a thousand times what an empty one takes."""
    if encoded.startswith(b"\xff\xd8"):
        if (size := jpeg_size(encoded)) is None:
            raise InvalidImage(
                "the image is truncated or damaged before its pixels; send the whole file, or save it anew"
            )
        return Header(*size, True)
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            weight = BYTES_PER_PIXEL.get(image.format or "", USUAL_BYTES_PER_PIXEL)
            return Header(*image.size, False, weight)
    # Pillow's plugins raise what their parsers do, not one type.
    except Exception as err:
        raise InvalidImage("the body is not an image; send a JPEG, PNG, WebP, BMP, GIF or TIFF file") from err


def decode(encoded: bytes, header: Header, wanted: Sequence[Preprocessing]) -> list[Pixels]:
    """Decode an image once, and make pixels for each preprocessing: the standard evaluation transforms.

    EXIF orientation is honoured, grey becomes colour, alpha is dropped. A JPEG much larger than what is wanted is
    decoded at 1/2, 1/4 or 1/8 scale, which libjpeg does in the frequency domain for less than the full price.

    Args:
        encoded: the file's bytes, any format that OpenCV decodes.
        header: what `inspect` found in it.
        wanted: how its pixels are to be made; of none, it is seen whether it can be decoded.

    Returns:
        BGR pixels, uint8 [height,width,3], one for each preprocessing, in order.

    Raises:
        InvalidImage: only part of an image.
    """
    flags = cv2.IMREAD_COLOR
    if header.is_jpeg:
        spare = min((_spare(header, preprocessing) for preprocessing in wanted), default=math.inf)
        flags = next((flag for factor, flag in REDUCED_JPEG.items() if spare >= factor), flags)
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as err:
        raise InvalidImage("the image can't be decoded; send it in another format") from err
    if image is None and encoded.startswith(b"GIF8"):
        image = _gif(encoded)
    if image is None:
        raise InvalidImage("the image is truncated or damaged; send the whole file")
    pixels = image.astype(np.uint8, copy=False)
    return [resize(pixels, preprocessing) for preprocessing in wanted]


def _gif(encoded: bytes) -> Pixels | None:
    """A GIF by Pillow, None if it is damaged: OpenCV 5.0 fails on one whose table of codes is full, which may be."""
    try:
        with Image.open(io.BytesIO(encoded), formats=("GIF",)) as image:
            return cv2.cvtColor(np.asarray(image.convert("RGB")), cv2.COLOR_RGB2BGR).astype(np.uint8, copy=False)
    # As in `inspect`.
    except Exception:
        return None


def resize(image: Pixels, wanted: Preprocessing) -> Pixels:
    """An image, uint8 [h,w,3], as a preprocessing wants it; what is cut away is cut first, the cheaper order."""
    if wanted.resize == "stretch":
        return _scaled(image, wanted.size, wanted)
    if wanted.resize == "letterbox":
        return _letterboxed(image, wanted)
    height, width = image.shape[:2]
    scale = max(wanted.size[0] / height, wanted.size[1] / width) / wanted.crop_ratio
    rows, columns = (max(1, round(edge / scale)) for edge in wanted.size)
    top, left = (height - rows) // 2, (width - columns) // 2
    return _scaled(image[top : top + rows, left : left + columns], wanted.size, wanted)


def _letterboxed(image: Pixels, wanted: Preprocessing) -> Pixels:
    height, width = image.shape[:2]
    scale = min(wanted.size[0] / height, wanted.size[1] / width)
    rows = min(wanted.size[0], max(1, round(height * scale)))
    columns = min(wanted.size[1], max(1, round(width * scale)))
    top, left = (wanted.size[0] - rows) // 2, (wanted.size[1] - columns) // 2
    result = np.empty((*wanted.size, 3), np.uint8)
    result[:] = wanted.border
    result[top : top + rows, left : left + columns] = _scaled(image, (rows, columns), wanted)
    return result


def _scaled(image: Pixels, size: Size, wanted: Preprocessing) -> Pixels:
    if image.shape[:2] == size:
        return np.ascontiguousarray(image)
    shrinks = image.shape[0] > size[0]
    averaging = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    interpolation = INTERPOLATIONS.get(wanted.interpolation, averaging)
    return cv2.resize(image, (size[1], size[0]), interpolation=interpolation).astype(np.uint8, copy=False)


def _spare(header: Header, wanted: Preprocessing) -> float:
    """How many times larger the image is than it needs to be for these pixels."""
    if wanted.resize == "crop":
        return min(header.width, header.height) * wanted.crop_ratio / max(wanted.size)
    ratios = header.width / max(wanted.size), header.height / max(wanted.size)
    return max(ratios) if wanted.resize == "letterbox" else min(ratios)

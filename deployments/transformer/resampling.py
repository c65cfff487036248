"""Resizes pixels: by OpenCV, or as Pillow does, with whose filters most models were trained."""

import math
import threading
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing, Size

# Makes the same pixels as Pillow in half the time or less, where there is a wheel for the machine.
try:
    import cykooz_resizer as rust
except ImportError:
    rust = None

# `area` is linear where the image grows.
OPENCV = {"area": cv2.INTER_LINEAR, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC, "nearest": cv2.INTER_NEAREST}


class Filter(NamedTuple):
    """A filter of Pillow, its name in `rust`, and the pixels that it reaches to each side where an image grows."""

    pillows: Image.Resampling
    rusts: str
    radius: int


PILLOW = {
    "bilinear": Filter(Image.Resampling.BILINEAR, "bilinear", 1),
    "bicubic": Filter(Image.Resampling.BICUBIC, "catmull_rom", 2),
    "lanczos": Filter(Image.Resampling.LANCZOS, "lanczos3", 3),
}
# What a crop ratio that was rounded may lack, pixels.
ROUNDING = 1e-3
OF_THREAD = threading.local()


class Box(NamedTuple):
    """A part of an image, pixels, which may begin and end between two of them."""

    top: float
    left: float
    height: float
    width: float


def resize(image: Pixels, wanted: Preprocessing, full: Size | None = None) -> Pixels:
    """Resize an image, uint8 [h,w,3], for a preprocessing; `full` is its size if it was decoded at a smaller scale."""
    height, width = image.shape[:2]
    size = wanted.size
    if wanted.resize == "letterbox":
        scale = min(size[0] / height, size[1] / width)
        size = min(size[0], max(1, round(height * scale))), min(size[1], max(1, round(width * scale)))
    if wanted.interpolation in PILLOW:
        box = _centre(image, full, wanted) if wanted.resize == "crop" else Box(0, 0, height, width)
        return _framed(_antialiased(image, box, size, PILLOW[wanted.interpolation]), wanted)
    if wanted.resize == "crop":
        # The crop comes first, because that is the cheaper order.
        scale = max(size[0] / height, size[1] / width) / wanted.crop_ratio
        rows, columns = (max(1, round(edge / scale)) for edge in size)
        top, left = (height - rows) // 2, (width - columns) // 2
        image = image[top : top + rows, left : left + columns]
    steps = [(size, OPENCV[wanted.interpolation])]
    if wanted.interpolation == "area":
        # OpenCV averages only where neither side grows.
        smaller = min(image.shape[0], size[0]), min(image.shape[1], size[1])
        steps.insert(0, (smaller, cv2.INTER_AREA))
    for (rows, columns), method in steps:
        if image.shape[:2] != (rows, columns):
            image = cv2.resize(image, (columns, rows), interpolation=method).astype(np.uint8, copy=False)
    return np.ascontiguousarray(image) if size == wanted.size else _framed(image, wanted)


def _framed(image: Pixels, wanted: Preprocessing) -> Pixels:
    """Put a letterboxed image in the middle of its border; return another as it is."""
    rows, columns = image.shape[:2]
    if (rows, columns) == wanted.size:
        return image
    framed = np.empty((*wanted.size, 3), np.uint8)
    framed[:] = wanted.border
    top, left = (wanted.size[0] - rows) // 2, (wanted.size[1] - columns) // 2
    framed[top : top + rows, left : left + columns] = image
    return framed


def _centre(image: Pixels, full: Size | None, wanted: Preprocessing) -> Box:
    """Return the part that is the centre of the resized image, as torchvision and timm resize first, and round so.

    The crop's edges lie where the pixels of the resized image do, so that only the part need be resized.
    """
    height, width = full or image.shape[:2]
    rows, columns = (math.floor(edge / wanted.crop_ratio + ROUNDING) for edge in wanted.size)
    if rows * width >= columns * height:
        columns = int(rows * width / height)
    else:
        rows = int(columns * height / width)
    scale = max(1, round(height / image.shape[0]))
    down, across = height / rows / scale, width / columns / scale
    top, left = round((rows - wanted.size[0]) / 2), round((columns - wanted.size[1]) / 2)
    return Box(top * down, left * across, wanted.size[0] * down, wanted.size[1] * across)


def _antialiased(image: Pixels, box: Box, size: Size, by: Filter) -> Pixels:
    """Resize a part of an image by a filter of Pillow."""
    rows, top, height = _window(image.shape[0], box.top, box.height, size[0], by.radius)
    columns, left, width = _window(image.shape[1], box.left, box.width, size[1], by.radius)
    if rust is None:
        edges = (left, top, left + width, top + height)
        return np.asarray(Image.fromarray(image[rows, columns]).resize(size[::-1], by.pillows, edges))
    # It works on columns first, and Pillow on rows, which rounds differently: so it gets the image turned. Rows are cut
    # out of each by no copy.
    part = cv2.transpose(image[rows])[columns]
    source = rust.ImageData(part.shape[1], part.shape[0], rust.PixelType.U8x3, part.tobytes())
    target = rust.ImageData(*size, rust.PixelType.U8x3)
    method = rust.ResizeAlg.convolution(rust.FilterType[by.rusts])
    crop = rust.CropBox(top, left, height, width)
    _resizer().resize(source, target, rust.ResizeOptions(resize_alg=method, crop_box=crop))
    turned = np.frombuffer(target.get_buffer(), np.uint8).reshape(size[1], size[0], 3)
    return cv2.transpose(turned).astype(np.uint8, copy=False)


def _window(side: int, start: float, length: float, size: int, radius: int) -> tuple[slice, float, float]:
    """Return the pixels of a side that a filter reads for a part of it, and the start and the length there."""
    reach = radius * max(1.0, length / size)
    first, last = max(0, math.floor(start - reach)), min(side, math.ceil(start + length + reach))
    # The sum of the two may exceed the side by a rounding.
    return slice(first, last), start - first, min(length, last - start)


def _resizer() -> rust.Resizer:
    """Return the thread's own resizer, which keeps its buffers."""
    if (found := getattr(OF_THREAD, "resizer", None)) is None:
        found = OF_THREAD.resizer = rust.Resizer()
    return found

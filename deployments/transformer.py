"""The JPEG transformer: encoded images in, uint8 pixels of the models' size out."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import cv2
import numpy as np
from PIL import Image

from deployments.cpus import available_cpus
from graph.batch import Batch, Pixels
from graph.config import TransformerSettings
from graph.errors import EnsembleError, ImageTooLarge, InvalidImage

logger = logging.getLogger(__name__)

# Pillow reads the headers here, and its own pixel limit would answer before ours.
Image.MAX_IMAGE_PIXELS = None

# What both Pillow and OpenCV read.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
REDUCED_JPEG = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}


@dataclass(frozen=True, slots=True)
class Header:
    """What an image file declares: its width and height in pixels, and whether it is a JPEG."""

    width: int
    height: int
    is_jpeg: bool


def inspect(encoded: bytes, limits: TransformerSettings) -> Header:
    """Read an image's header.

    Raises:
        InvalidImage: no image.
        ImageTooLarge: over the limit on bytes or on declared pixels.
    """
    check_size(encoded, limits)
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            header = Header(*image.size, image.format in {"JPEG", "MPO"})
    # Pillow's plugins raise what their parsers do, not one type.
    except Exception as err:
        raise InvalidImage("the body is not an image; send a JPEG, PNG, WebP, BMP, GIF or TIFF file") from err
    if header.width * header.height > limits.max_image_pixels:
        raise ImageTooLarge(
            f"the image declares {header.width} x {header.height} pixels; "
            f"at most {limits.max_image_pixels} in all are accepted"
        )
    return header


def decode(encoded: bytes, header: Header, size: tuple[int, int], crop_ratio: float) -> Pixels:
    """Decode an image, resize it keeping its aspect and crop the centre: the standard evaluation transform.

    EXIF orientation is honoured, grey becomes colour, alpha is dropped. A JPEG much larger than `size` is decoded at
    1/2, 1/4 or 1/8 scale, which libjpeg does in the frequency domain for less than the full price.

    Args:
        encoded: the file's bytes, any format that OpenCV decodes.
        header: what `inspect` found in it.
        size: height and width of the result, pixels.
        crop_ratio: share of the shorter side that stays; 0.875 is ImageNet's 224 of 256.

    Returns:
        BGR pixels, uint8 [height, width, 3].

    Raises:
        InvalidImage: only part of an image.
    """
    flags = cv2.IMREAD_COLOR
    if header.is_jpeg:
        spare = min(header.width, header.height) * crop_ratio / max(size)
        flags = next((flag for factor, flag in REDUCED_JPEG.items() if spare >= factor), flags)
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as err:
        raise InvalidImage("the image can't be decoded; send it in another format") from err
    if image is None:
        raise InvalidImage("the image is truncated or damaged; send the whole file")
    return crop_and_resize(image.astype(np.uint8, copy=False), size, crop_ratio)


def check_size(encoded: bytes, limits: TransformerSettings) -> None:
    """Raise InvalidImage for no bytes, ImageTooLarge for more than the limit."""
    if not encoded:
        raise InvalidImage("the image has no bytes; send the file as the body")
    if len(encoded) > limits.max_image_bytes:
        raise ImageTooLarge(f"the image has {len(encoded)} bytes; at most {limits.max_image_bytes} are accepted")


def crop_and_resize(image: Pixels, size: tuple[int, int], crop_ratio: float) -> Pixels:
    """The centre of an image, uint8 [h, w, 3], at `size`; cropped before it is resized, which is the cheaper order."""
    height, width = image.shape[:2]
    scale = max(size[0] / height, size[1] / width) / crop_ratio
    rows, columns = (max(1, round(edge / scale)) for edge in size)
    top, left = (height - rows) // 2, (width - columns) // 2
    centre = image[top : top + rows, left : left + columns]
    if centre.shape[:2] == size:
        return np.ascontiguousarray(centre)
    shrinks = centre.shape[0] > size[0]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(centre, (size[1], size[0]), interpolation=interpolation).astype(np.uint8, copy=False)


class JpegTransformer:
    """Decodes batches in a bounded thread pool, so that neither the event loop nor the machine is overrun."""

    def __init__(
        self, settings: TransformerSettings, size: tuple[int, int], crop_ratio: float, threads: int | None
    ) -> None:
        """Set the models' input size (height, width), the crop and the number of threads (default: all CPUs)."""
        cv2.setNumThreads(1)
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        self._size = size
        self._crop_ratio = crop_ratio
        self._threads = threads or available_cpus()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        self.settings = settings

    async def __call__(self, batch: Batch[list[bytes]]) -> Batch[Pixels]:
        """Encoded images to pixels, uint8 [N,H,W,3] BGR; an image that can't be decoded fails alone."""
        start_ns = time.time_ns()
        batch = batch.unexpired()
        loop = asyncio.get_running_loop()
        chunk = -(-len(batch.payload) // self._threads) or 1
        results = await asyncio.gather(
            *(
                loop.run_in_executor(self._pool, self._decode_all, batch.payload[first : first + chunk])
                for first in range(0, len(batch.payload), chunk)
            )
        )
        errors, pixels = {}, []
        for position, outcome in zip(batch.live, chain.from_iterable(results), strict=True):
            if isinstance(outcome, EnsembleError):
                errors[position] = outcome
            else:
                image, header = outcome
                pixels.append(image)
                batch.requests[position].image_size = header.width, header.height
        return batch.fail(errors).advance(
            "decode", start_ns, np.stack(pixels) if pixels else np.empty((0, *self._size, 3), np.uint8)
        )

    def _decode_all(self, encoded: list[bytes]) -> list[tuple[Pixels, Header] | EnsembleError]:
        return [self._decode(image) for image in encoded]

    def _decode(self, encoded: bytes) -> tuple[Pixels, Header] | EnsembleError:
        try:
            header = inspect(encoded, self.settings)
            return decode(encoded, header, self._size, self._crop_ratio), header
        except EnsembleError as err:
            return err.with_traceback(None)
        except Exception:
            # Another image's answer must not hang on what this one has found.
            logger.exception("failed to decode an image of %d bytes", len(encoded))
            return InvalidImage("the image can't be decoded; send it in another format")

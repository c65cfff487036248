"""Pixels as an image file that needs no encoder."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<2s6I2H24x")
INFO_BYTES, COLOURS_BITS = 40, 24


def bitmap(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels, uint8 [H,W,3], red, green and blue, as BMP; each side is at least 1."""
    height, width, colours = pixels.shape
    # From the bottom up, blue first, and each row of whole words.
    rows = np.zeros((height, -(-width * colours // 4) * 4), np.uint8)
    rows[:, : width * colours] = pixels[::-1, :, ::-1].reshape(height, -1)
    size = HEADER.size + rows.nbytes
    return HEADER.pack(b"BM", size, 0, HEADER.size, INFO_BYTES, width, height, 1, COLOURS_BITS) + rows.tobytes()

"""Pictures that tests draw, encoded."""

import io

import cv2
import numpy as np
from PIL import Image


def noise(height=120, width=160, seed=0):
    """A smooth random picture, BGR uint8 [height, width, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def grey(level, height=64, width=64):
    """A picture of one grey level."""
    return np.full((height, width, 3), level, np.uint8)


def encode(pixels, suffix=".jpg", **options):
    """Encode BGR, BGRA or grey pixels with OpenCV."""
    parameters = [value for pair in options.items() for value in pair]
    done, encoded = cv2.imencode(suffix, pixels, parameters)
    assert done
    return encoded.tobytes()


def jpeg(height=120, width=160, seed=0):
    """A JPEG of `noise`."""
    return encode(noise(height, width, seed))


def progressive(width, height, mode="RGB", **options):
    """A progressive JPEG of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 30)).convert(mode).save(
        out, "JPEG", **({"progressive": True} | options)
    )
    return out.getvalue()


def with_orientation(pixels, orientation, kind="JPEG"):
    """An image whose EXIF tag 274 says how to turn it."""
    exif = Image.Exif()
    exif[274] = orientation
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, ::-1]).save(out, kind, exif=exif, quality=95)
    return out.getvalue()


def bomb(side=20_000):
    """A PNG of a few hundred kilobytes that declares `side` x `side` pixels."""
    out = io.BytesIO()
    Image.new("1", (side, side)).save(out, "PNG")
    return out.getvalue()

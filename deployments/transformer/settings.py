"""The transformer's settings."""

from typing import Annotated, Literal

from pydantic import Field

from deployments.contract.settings import MIB, Placement, Schema

Isolate = Literal["others", "all"]
# The largest `max_image_bytes`.
MOST_IMAGE_BYTES = 256 * MIB
Edge = Annotated[int, Field(ge=1, le=8192)]


class TransformerSettings(Schema):
    """Limits of the JPEG transformer, checked before a pixel is decoded; the last two hold for isolated decoding."""

    max_image_bytes: int = Field(10 * MIB, ge=1024, le=MOST_IMAGE_BYTES, description="encoded size of an image, bytes")
    max_image_pixels: int = Field(
        50_000_000, ge=1024, le=1_000_000_000, description="declared size of an image, pixels"
    )
    max_decoding_bytes: int = Field(
        48 * MIB, ge=32 * MIB, le=64 * 1024 * MIB, description="memory that decoding may take at once, bytes"
    )
    decode_timeout_ms: int = Field(15_000, ge=100, le=600_000, description="time that one image's decoding may take")


class TransformerConfig(TransformerSettings):
    """The JPEG transformer."""

    placement: Placement = "separate"
    size: tuple[Edge, Edge] | None = Field(None, description="height and width, pixels; default: the members'")
    crop_ratio: float | None = Field(
        None, gt=0, le=1, description="share of the shorter side that the centre crop keeps; default: the models', or 1"
    )
    threads: int | None = Field(None, ge=1, le=256, description="decoding threads; default: the CPUs of the container")
    isolate: Isolate = Field(
        "others", description="images that separate processes decode: all but small JPEGs (`others`), or `all`"
    )

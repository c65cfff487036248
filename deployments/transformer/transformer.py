"""The JPEG transformer: encoded images in, uint8 pixels out, one set for each preprocessing that a member wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from deployments.contract.batch import Batch, Work
from deployments.contract.declared import declared
from deployments.contract.errors import EnsembleError, InvalidImage
from deployments.contract.payload import Images, Pixels, PixelSets
from deployments.contract.preprocessing import AsSent, Preprocessing, Wanted
from deployments.contract.settings import MIB, Placement, Schema
from deployments.cpus import available_cpus

logger = logging.getLogger("ray.serve")

OPERATION = "decode"
Isolate = Literal["others", "all"]
Edge = Annotated[int, Field(ge=1, le=8192)]
# An image's pixels for each preprocessing, and its width and height.
Decoded = tuple[list[Pixels], tuple[int, int]]


class TransformerSettings(Schema):
    """Limits of the JPEG transformer, checked before a pixel is decoded; the last two where decoding is isolated."""

    max_image_bytes: int = Field(10 * MIB, ge=1024, le=256 * MIB, description="encoded size of an image, bytes")
    max_image_pixels: int = Field(50_000_000, ge=1024, le=1_000_000_000, description="declared size, pixels")
    max_decoding_bytes: int = Field(
        1024 * MIB, ge=32 * MIB, le=64 * 1024 * MIB, description="memory that decoding may take at once, bytes"
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
    isolate: Isolate = Field("others", description="what is decoded in processes of their own: all but JPEGs, or all")


class JpegTransformer:
    """Decodes batches, so that neither the event loop nor the machine is overrun.

    JPEGs of the usual size are decoded in a bounded thread pool. Everything else is decoded in as many processes, since
    its decoders are less proven, and take more: one that hangs or crashes costs its image alone.
    """

    def __init__(
        self,
        settings: TransformerSettings,
        wanted: Mapping[str, Wanted],
        threads: int | None,
        isolate: Isolate = "others",
    ) -> None:
        """Set the limits, what is wanted of an image by its key, and the number of threads (default: all CPUs).

        What is isolated is all but JPEGs of the usual size (`others`), or everything.
        """
        self.settings = settings
        self._isolates_all = isolate == "all"
        self._wanted = {key: each for key, each in wanted.items() if isinstance(each, Preprocessing)}
        self._as_sent = [key for key, each in wanted.items() if isinstance(each, AsSent)]
        self._threads = threads or available_cpus()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        # Imported where it runs: OpenCV takes memory that a process without a transformer need not spend.
        from deployments.transformer import decoding
        from deployments.transformer.isolation.pool import IsolatedPool

        self._decoding = decoding
        self._isolated = IsolatedPool(self._threads)

    def check(self, settings: TransformerSettings) -> None:
        """Any limits will do."""

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[PixelSets]:
        """Encoded images to pixels, uint8 [N,H,W,3] BGR by key; an image that can't be decoded fails alone.

        Each is decoded even if every member takes it as it was sent: one that is damaged would fail the others' too.
        """
        work = Work(OPERATION, batch)
        outcomes = await self._decoded(work.payload, work.batch)
        errors = {row: outcome for row, outcome in enumerate(outcomes) if isinstance(outcome, EnsembleError)}
        decoded = [outcome for outcome in outcomes if not isinstance(outcome, EnsembleError)]
        sets = self._sets(decoded)
        if self._as_sent:
            whole = [encoded for row, encoded in enumerate(work.payload) if row not in errors]
            sets |= dict.fromkeys(self._as_sent, whole)
        return work.done(sets, lambda row: {"image_size": decoded[row][1]}, errors=errors)

    async def _decoded(self, payload: Sequence[bytes], batch: Batch[Sequence[bytes]]) -> list[Decoded | EnsembleError]:
        """What becomes of each row."""
        isolated = [row for row, image in enumerate(payload) if self._isolates_all or not declared(image).is_plain]
        if not isolated:
            return await self._in_threads(payload)
        apart = set(isolated)
        plain = [row for row in range(len(payload)) if row not in apart]
        live, wanted = batch.live, tuple(self._wanted.values())
        images = [(payload[row], batch.items[live[row]].deadline) for row in isolated]
        in_threads, in_processes = await asyncio.gather(
            self._in_threads([payload[row] for row in plain]), self._isolated.decode(images, wanted, self.settings)
        )
        outcomes = dict(zip(plain, in_threads, strict=True)) | dict(zip(isolated, in_processes, strict=True))
        return [outcomes[row] for row in range(len(payload))]

    async def _in_threads(self, images: Sequence[bytes]) -> list[Decoded | EnsembleError]:
        loop = asyncio.get_running_loop()
        chunk = -(-len(images) // self._threads) or 1
        results = await asyncio.gather(
            *(
                loop.run_in_executor(self._pool, self._decode_all, images[first : first + chunk])
                for first in range(0, len(images), chunk)
            )
        )
        return list(chain.from_iterable(results))

    def _sets(self, decoded: Sequence[Decoded]) -> dict[str, Images]:
        if not decoded:
            return {key: np.empty((0, *wanted.size, 3), np.uint8) for key, wanted in self._wanted.items()}
        return {key: np.stack([pixels[i] for pixels, _ in decoded]) for i, key in enumerate(self._wanted)}

    def _decode_all(self, encoded: Sequence[bytes]) -> list[Decoded | EnsembleError]:
        return [self._decode(image) for image in encoded]

    def _decode(self, encoded: bytes) -> Decoded | EnsembleError:
        try:
            header = self._decoding.inspect(encoded, self.settings)
            pixels = self._decoding.decode(encoded, header, tuple(self._wanted.values()))
            return pixels, (header.width, header.height)
        except EnsembleError as err:
            return err.with_traceback(None)
        except Exception:
            # Another image's answer must not hang on what this one has found.
            logger.exception("failed to decode an image of %d bytes", len(encoded))
            return InvalidImage("the image can't be decoded; send it in another format")

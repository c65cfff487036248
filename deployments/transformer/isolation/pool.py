"""Decodes images in processes of their own, so many at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deployments.contract.errors import DeadlineExceeded, EnsembleError
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.isolation.keeper import Decoded, Keeper, Limits, Memory

if TYPE_CHECKING:
    from deployments.transformer.transformer import TransformerSettings

logger = logging.getLogger("ray.serve")

# For an image without a deadline, seconds.
NO_DEADLINE_S = 3600.0
# An encoded image, and its deadline, seconds since the epoch.
Sent = tuple[bytes, float | None]


class IsolatedPool:
    """As many decoding processes as there are threads, each started when it is first needed."""

    def __init__(self, size: int) -> None:
        """Set how many there are."""
        self._memory = Memory()
        self._own = threading.local()
        self._keepers: list[Keeper] = []
        # A thread keeps a process: it waits for it, and when it ends, so does the process.
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="isolate")
        weakref.finalize(self, _end, self._keepers)

    @property
    def processes(self) -> list[int]:
        """The ids of those that have been started."""
        return [keeper.pid for keeper in self._keepers if keeper.pid is not None]

    async def decode(
        self, images: Sequence[Sent], wanted: Sequence[Preprocessing], settings: TransformerSettings
    ) -> list[Decoded | EnsembleError]:
        """Decode images, each in a process: its pixels for each preprocessing and its size, or its error, in order."""
        limits = Limits(
            settings.max_image_bytes,
            settings.max_image_pixels,
            settings.max_decoding_bytes,
            settings.decode_timeout_ms / 1000,
        )
        loop, now, monotonic = asyncio.get_running_loop(), time.time(), time.monotonic()
        return await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads,
                    self._decode,
                    image,
                    wanted,
                    limits,
                    monotonic + (NO_DEADLINE_S if deadline is None else deadline - now),
                )
                for image, deadline in images
            )
        )

    def _decode(
        self, image: bytes, wanted: Sequence[Preprocessing], limits: Limits, deadline: float
    ) -> Decoded | EnsembleError:
        if time.monotonic() >= deadline:
            return DeadlineExceeded("the deadline passed before the image was decoded; allow more time")
        keeper: Keeper | None = getattr(self._own, "keeper", None)
        if keeper is None:
            self._own.keeper = keeper = Keeper(self._memory)
            self._keepers.append(keeper)
        try:
            return keeper.decode(image, wanted, limits, deadline)
        except EnsembleError as err:
            if err.code == EnsembleError.code:
                logger.exception("failed to decode an image of %d bytes", len(image))
            return err.with_traceback(None)
        except Exception:
            # Another image's answer must not hang on what this one has found.
            logger.exception("failed to decode an image of %d bytes", len(image))
            keeper.end(at_once=True)
            return EnsembleError("the image could not be decoded; the server's log has the cause")


def _end(keepers: Sequence[Keeper]) -> None:
    for keeper in keepers:
        keeper.end(at_once=True)

"""A pool of workers, each of which decodes images in a process of its own."""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from deployments.contract import clock
from deployments.contract.errors import EnsembleError
from deployments.contract.payload import Decoded
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.isolation.worker import MemoryBudget, Worker
from deployments.transformer.settings import TransformerSettings

logger = logging.getLogger("ray.serve")

DecodingOutcome = Decoded | EnsembleError
# The time of an image that has no deadline.
NO_DEADLINE_S = 3600.0


class IsolatedPool:
    """As many threads as there may be processes; each has a worker, whose process starts when it is first needed."""

    def __init__(self, size: int) -> None:
        self._memory = MemoryBudget()
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="isolate")
        weakref.finalize(self, _end, self._workers)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def decode(
        self,
        images: Sequence[tuple[bytes, float | None]],
        wanted: Sequence[Preprocessing],
        settings: TransformerSettings,
    ) -> tuple[list[DecodingOutcome], int]:
        """Decode images, each in a process.

        Args:
            images: each with its deadline, seconds since the epoch.
            wanted: the preprocessings, each of which gets pixels.
            settings: the limits of an image.

        Returns:
            The outcome of each image, in order, and the CPU time that the processes used, nanoseconds.
        """
        loop, now, monotonic = asyncio.get_running_loop(), clock.now(), time.monotonic()
        deadlines = [monotonic + (NO_DEADLINE_S if each is None else each - now) for _, each in images]
        calls = [
            loop.run_in_executor(self._threads, self._decode, image, wanted, settings, deadline)
            for (image, _), deadline in zip(images, deadlines, strict=True)
        ]
        found = await asyncio.gather(*calls)
        return [outcome for outcome, _ in found], sum(cpu_ns for _, cpu_ns in found)

    def _decode(
        self, image: bytes, wanted: Sequence[Preprocessing], settings: TransformerSettings, deadline: float
    ) -> tuple[DecodingOutcome, int]:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            self._own.worker = worker = Worker(self._memory)
            self._workers.append(worker)
        outcome: DecodingOutcome
        try:
            outcome = worker.decode(image, wanted, settings, deadline)
        except EnsembleError as err:
            if err.code == EnsembleError.code:
                logger.exception("failed to decode an image of %d bytes", len(image))
            outcome = err.with_traceback(None)
        except Exception:
            # The batch's other images have answers.
            logger.exception("failed to decode an image of %d bytes", len(image))
            worker.end(at_once=True)
            outcome = EnsembleError("the image could not be decoded; the server's log has the cause")
        return outcome, worker.cpu_ns


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.end(at_once=True)

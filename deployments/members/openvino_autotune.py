"""The number of streams that a model computes fastest with: measured once, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from deployments.repository.repository import user_cache

logger = logging.getLogger("ray.serve")

# A measurement takes no longer than this in all, and of each number of streams no longer than that, seconds.
BUDGET_S, EACH_S = 2.0, 0.25
# A gain of less is this machine's noise, and every stream takes memory.
WORTH = 0.95


class Measured(msgspec.Struct):
    """A measurement of a model: the milliseconds of a batch, by the number of streams."""

    batch_ms: dict[int, float]

    @property
    def best(self) -> int:
        """The fewest streams that are about as fast as any."""
        fastest = min(self.batch_ms.values())
        return min(streams for streams, taken in self.batch_ms.items() if WORTH * taken <= fastest)


def best_streams(key: Sequence[object], threads: int, batch: Callable[[int], Callable[[], object]]) -> int:
    """Return the number of streams that computes fastest.

    Args:
        key: what the measurement depends on: the model, its inputs, the machine and the software.
        threads: how many threads compute.
        batch: prepares a number of streams; what it returns executes a batch.
    """
    if threads == 1:
        return 1
    name = f"{hashlib.sha256(repr((*key, threads)).encode()).hexdigest()}.json"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder() / name).read_bytes(), type=Measured).best
    measured = Measured(dict(measure(threads, batch)))
    logger.info("a batch takes, ms by the number of streams: %s", measured.batch_ms)
    # Where nothing can be kept, the next start measures again.
    with suppress(OSError):
        file = folder() / name
        whole = file.with_suffix(f".{os.getpid()}")
        whole.write_bytes(msgspec.json.encode(measured))
        whole.rename(file)
    return measured.best


def measure(threads: int, batch: Callable[[int], Callable[[], object]]) -> Iterator[tuple[int, float]]:
    """Measure a batch, ms, with one stream, with a stream per thread, and with numbers between while time is left."""
    give_up = time.perf_counter() + BUDGET_S
    for streams in dict.fromkeys((1, threads, threads // 2, threads // 4)):
        if streams < 1 or (streams not in {1, threads} and time.perf_counter() > give_up):
            continue
        execute = batch(streams)
        execute()
        taken: list[float] = []
        end = time.perf_counter() + EACH_S
        while not taken or time.perf_counter() < end:
            began = time.perf_counter()
            execute()
            taken.append(time.perf_counter() - began)
        # What disturbs makes it slower, never faster.
        yield streams, 1000 * min(taken)


def folder() -> Path:
    """Return the folder of measurements; raises OSError as `user_cache`."""
    return user_cache("measured")

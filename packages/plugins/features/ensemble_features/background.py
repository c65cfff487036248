"""Work in the background, on images that are answered: without their deadlines, and one piece at a time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from deployments.contract.batch import Batch

# How long work in the background may take where the configuration sets no patience.
PATIENCE_MS = 5000

P = TypeVar("P")


class Background:
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a piece of work is running."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a piece of work, while none is running."""
        self._task = asyncio.get_running_loop().create_task(work)


def unhurried(batch: Batch[P]) -> Batch[P]:
    """Remove the images' deadlines, so that they have all the time that a member may take."""
    return Batch(batch.payload, tuple(replace(item, deadline=None) for item in batch.items))

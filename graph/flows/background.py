"""Work that nobody waits for: asking members about images once more, or asking others about them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from deployments.contract.batch import Batch

# How long it may take where nothing else says so.
PATIENCE_MS = 5000

P = TypeVar("P")


class Background:
    """One piece of work at a time: while it is under way there is no room for another."""

    def __init__(self) -> None:
        """Begin with none."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a piece is under way."""
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a piece."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def unhurried(batch: Batch[P]) -> Batch[P]:
    """The images without a deadline: nobody waits for them, so they have the time that a member may take."""
    return Batch(batch.payload, tuple(replace(item, deadline=None) for item in batch.items))

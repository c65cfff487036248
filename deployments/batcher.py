"""Batching at the door: single images in, batches through the graph.

Serve's own `@serve.batch` cuts a batch when its wait is over, even while every pass through the graph is taken, so
under load it queues many small batches, and an idle server makes a lone request wait. Here a batch is cut when a pass
is free: a lone request leaves at once, and what arrives while the graph is busy leaves together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from graph.config import IngressSettings

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Gathers items and hands them on in batches, first come, first served."""

    def __init__(
        self, run: Callable[[Sequence[T]], Awaitable[Sequence[R]]], size: Callable[[T], int], settings: IngressSettings
    ) -> None:
        """Set what a batch is given to (one result an item, in order), an item's bytes, and the limits."""
        self._run = run
        self._size = size
        self._pending: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.settings = settings

    def submit(self, item: T) -> asyncio.Future[R]:
        """Add an item; the future is its result. Cancelling it takes an item that waits out of its batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._pending.append((item, future))
        if len(self._pending) >= self.settings.max_batch_size:
            self._dispatch()
        elif self._timer is None:
            # Even without a wait, what arrives in the same turn of the event loop leaves together.
            self._timer = loop.call_later(self.settings.batch_wait_ms / 1000, self._dispatch)
        return future

    def _dispatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending and len(self._running) < self.settings.max_concurrent_batches:
            if batch := self._cut():
                task = asyncio.create_task(self._process(batch))
                self._running.add(task)
                task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._dispatch()

    def _cut(self) -> list[tuple[T, asyncio.Future[R]]]:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        total = 0
        while self._pending and len(batch) < self.settings.max_batch_size:
            item, future = self._pending[0]
            if future.done():
                self._pending.popleft()
                continue
            total += self._size(item)
            if batch and total > self.settings.max_batch_bytes:
                break
            batch.append(self._pending.popleft())
        return batch

    async def _process(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        except Exception as err:
            for _, future in batch:
                if not future.done():
                    future.set_exception(err)

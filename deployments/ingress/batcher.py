"""Batching at the ingress: single images in, batches through the graph.

Serve's own `@serve.batch` cuts a batch when its wait is over, even while every pass through the graph is taken, so
under load it queues many small batches, and an idle server makes a lone request wait. Here a batch is cut when a pass
is free: a lone request leaves at once, and what arrives while the graph is busy leaves together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from deployments.ingress.settings import IngressSettings

T = TypeVar("T")
R = TypeVar("R")
# Takes results as they come, by the items' positions in their batch.
Deliver = Callable[[Sequence[int], Sequence[R]], None]


class Batcher(Generic[T, R]):
    """Gathers items and hands them on in batches, first come, first served."""

    def __init__(
        self,
        run: Callable[[Sequence[T], Deliver[R]], Awaitable[None]],
        size: Callable[[T], int],
        settings: IngressSettings,
    ) -> None:
        """Set what a batch is given to, which hands on each item's result once; an item's bytes; and the limits."""
        self._run = run
        self._size = size
        self._pending: dict[asyncio.Future[R], T] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.settings = settings

    @property
    def waiting(self) -> int:
        """The number of items that no batch has taken yet."""
        return len(self._pending)

    def submit(self, item: T) -> asyncio.Future[R]:
        """Add an item; the future is its result. Cancelling it takes an item that waits out of its batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._pending[future] = item
        future.add_done_callback(lambda done: self._pending.pop(done, None))
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
            # In a context of its own: in a request's, Serve would cancel the whole batch when that one client leaves.
            task = asyncio.get_running_loop().create_task(self._process(self._cut()), context=Context())
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._dispatch()

    def _cut(self) -> dict[asyncio.Future[R], T]:
        batch: dict[asyncio.Future[R], T] = {}
        total = 0
        for future, item in self._pending.items():
            total += self._size(item)
            if len(batch) == self.settings.max_batch_size or (batch and total > self.settings.max_batch_bytes):
                break
            batch[future] = item
        for future in batch:
            del self._pending[future]
        return batch

    async def _process(self, batch: dict[asyncio.Future[R], T]) -> None:
        futures = list(batch)

        def deliver(positions: Sequence[int], results: Sequence[R]) -> None:
            for position, result in zip(positions, results, strict=True):
                if not futures[position].done():
                    futures[position].set_result(result)

        try:
            await self._run(list(batch.values()), deliver)
        except Exception as err:
            for future in batch:
                if not future.done():
                    future.set_exception(err)
        finally:
            # Whatever happened, nobody waits for ever.
            for future in batch:
                future.cancel()

"""Batching at the ingress: single images in, batches through the graph.

Serve's own `@serve.batch` cuts a batch when its wait is over, even while every concurrency slot is taken, so
under load it queues many small batches, and an idle server makes a lone request wait. Here a batch is cut when a slot
is free: a lone request leaves at once, and what arrives while the graph is busy leaves together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from operator import methodcaller
from typing import Generic, TypeVar

from deployments.ingress.batching import Batching
from deployments.ingress.settings import IngressSettings

T = TypeVar("T")
R = TypeVar("R")
# What an event loop's timers are exact to, seconds: for less, nobody waits.
TICK_S = 0.001
# Takes results as they come, by the items' positions in their batch.
Deliver = Callable[[Sequence[int], Sequence[R]], None]


class Batcher(Generic[T, R]):
    """Gathers items and hands them on in batches."""

    def __init__(
        self,
        run: Callable[[Sequence[T], Deliver[R]], Awaitable[None]],
        size: Callable[[T], int],
        settings: Callable[[], IngressSettings],
        turn: Callable[[T], int] = lambda _: 0,
    ) -> None:
        """Set what a batch is given to, which hands on each item's result once; an item's bytes; the limits; and turns.

        An item's turn is a time, nanoseconds since the epoch. Items leave by their turns, in the order of arrival. One
        whose turn is still to come leaves if no other waits, but not in a batch with others.
        """
        self._turn = turn
        self._run = run
        self._size = size
        self._settings = settings
        self.batching = Batching(settings, time.monotonic)
        self._pending: dict[asyncio.Future[R], T] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._outcomes: deque[tuple[asyncio.Future[R], Callable[[asyncio.Future[R]], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._leaves_at = 0.0

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
        self.batching.arrived(len(self._pending))
        if len(self._pending) >= self._settings().max_batch_size:
            self._dispatch()
        else:
            self._set_timer()
        return future

    def _set_timer(self) -> None:
        """Have the next batch leave when it is time; even without a wait, not before this turn of the loop is over."""
        leaves_at = self.batching.leaves_at(len(self._pending))
        if self._timer is not None:
            if leaves_at is not None and leaves_at >= self._leaves_at:
                return
            self._timer.cancel()
            self._timer = None
        if leaves_at is not None:
            self._leaves_at = leaves_at
            delay = leaves_at - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(delay if delay > TICK_S else 0, self._dispatch)

    def _dispatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (leaves_at := self.batching.leaves_at(len(self._pending))) is not None:
            if leaves_at > time.monotonic() + TICK_S:
                self._set_timer()
                return
            # In a context of its own: in a request's, Serve would cancel the whole batch when that one client leaves.
            batch = self._cut()
            task = asyncio.get_running_loop().create_task(self._process(batch), context=Context())
            self._running.add(task)
            task.add_done_callback(partial(self._finished, len(batch), self.batching.left(len(batch))))

    def _finished(self, images: int, left: float, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.batching.ended(images, left)
        self._dispatch()

    def _cut(self) -> dict[asyncio.Future[R], T]:
        batch: dict[asyncio.Future[R], T] = {}
        total, settings, now = 0, self._settings(), time.time_ns()
        waiting = sorted(self._pending.items(), key=lambda pending: self._turn(pending[1]))
        has_due = self._turn(waiting[0][1]) <= now
        for future, item in waiting:
            total += self._size(item)
            if has_due and self._turn(item) > now:
                break
            if len(batch) == settings.max_batch_size or (batch and total > settings.max_batch_bytes):
                break
            batch[future] = item
        for future in batch:
            del self._pending[future]
        return batch

    async def _process(self, batch: dict[asyncio.Future[R], T]) -> None:
        futures = list(batch)
        undelivered = set(futures)

        def deliver(positions: Sequence[int], results: Sequence[R]) -> None:
            for position, result in zip(positions, results, strict=True):
                undelivered.discard(futures[position])
                self._resolve_later(futures[position], methodcaller("set_result", result))

        try:
            await self._run(list(batch.values()), deliver)
        except Exception as err:
            for future in undelivered:
                self._resolve_later(future, methodcaller("set_exception", err))
            undelivered.clear()
        finally:
            # Whatever happened, nobody waits for ever.
            for future in undelivered:
                future.cancel()

    def _resolve_later(self, future: asyncio.Future[R], resolve: Callable[[asyncio.Future[R]], None]) -> None:
        """Resolve one future in each turn of the loop: the next batch leaves before a whole batch is answered."""
        if not self._outcomes:
            asyncio.get_running_loop().call_soon(self._resolve_next)
        self._outcomes.append((future, resolve))

    def _resolve_next(self) -> None:
        future, resolve = self._outcomes.popleft()
        if not future.done():
            resolve(future)
        if self._outcomes:
            asyncio.get_running_loop().call_soon(self._resolve_next)

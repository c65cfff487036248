"""Where admitted images wait: single images in, batches through the graph.

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
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import Generic, TypeVar

from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError
from deployments.contract.image_probe import ImageProbe
from deployments.contract.item import Item
from deployments.ingress.batching import Batching
from deployments.ingress.settings import IngressSettings
from deployments.observe.tracing import ImageTrace, Trace

T = TypeVar("T")
R = TypeVar("R")
# What an event loop's timers are exact to, seconds: for less, nobody waits.
TICK_S = 0.001
# Takes results as they come, by the items' positions in their batch.
Deliver = Callable[[Sequence[int], Sequence[R]], None]
# A request may hold 64 images, and one that comes a moment later shall not wait for all of them. So the images beyond
# its first batch take their turns as if they came one batch after the other.
BATCHES_APART_NS = 200_000_000
# While the usual class sends, an image of the lower class leaves alone: when no image of the usual class is there, or
# when so many have come since the last one. A client that has sent is expected to send again for so many seconds.
USUAL_PER_LOWER, SENDS_S = 16, 1.0
AnswerOrError = Answer | EnsembleError


class Batcher(Generic[T, R]):
    """Gathers items and hands them on in batches."""

    def __init__(
        self,
        run: Callable[[Sequence[T], Deliver[R]], Awaitable[None]],
        size: Callable[[T], int],
        settings: Callable[[], IngressSettings],
        turn: Callable[[T], int] = lambda _: 0,
    ) -> None:
        """Create a batcher.

        Args:
            run: receives each batch, and passes each item's result on once.
            size: returns an item's bytes.
            settings: returns the limits in force.
            turn: returns the time from which an item may leave, nanoseconds since the epoch. Items leave by their
                turns, in the order of arrival. An item whose turn is still to come leaves if no other waits, but not
                in a batch with others.
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
        # Called when no more batches leave for now.
        self.then: Callable[[], None] = lambda: None

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
            self.dispatch()
        else:
            self._set_timer()
        return future

    def _set_timer(self) -> None:
        """Set the timer for the next batch; even without a wait, it leaves after this turn of the event loop."""
        leaves_at = self.batching.leaves_at(len(self._pending))
        if self._timer is not None:
            if leaves_at is not None and leaves_at >= self._leaves_at:
                return
            self._timer.cancel()
            self._timer = None
        if leaves_at is not None:
            self._leaves_at = leaves_at
            delay = leaves_at - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(delay if delay > TICK_S else 0, self.dispatch)

    def dispatch(self) -> None:
        """Let the batches leave that may leave now."""
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
        self.then()

    def _finished(self, images: int, left: float, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.batching.ended(images, left)
        self.dispatch()

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


@dataclass(frozen=True, slots=True)
class Queued:
    """An image, or a member's pixels, that waits for its batch.

    Attributes:
        isolated_pixels: see `ImageProbe.isolated_pixels`.
        size: what it adds to its batch, bytes; of an image that is decoded apart, its pixels if they are more.
        turn_ns: when its turn is, nanoseconds since the epoch.
    """

    image: bytes
    item: Item
    image_trace: ImageTrace
    isolated_pixels: int
    size: int
    turn_ns: int


class Queue:
    """Gathers images into batches; those that others must not wait for have a batcher of their own."""

    def __init__(
        self,
        execute: Callable[[Sequence[Queued], Deliver[AnswerOrError]], Awaitable[None]],
        settings: Callable[[], IngressSettings],
        probe: Callable[[bytes], ImageProbe],
        knows: Callable[[bytes, Item], bool] | None = None,
    ) -> None:
        """Create a queue.

        Args:
            execute: receives each batch.
            settings: returns the limits in force.
            probe: reads what an image declares.
            knows: returns whether an image is answered from memory; None where nothing is remembered.
        """
        self._execute, self._settings, self._probe, self._knows = execute, settings, probe, knows
        # Large images that are decoded apart go alone, by their size: the others of a batch would wait for the last.
        self._batchers = self._plain, self._isolated, self._known, self._lower = tuple(
            Batcher[Queued, AnswerOrError](run, attrgetter("size"), limits, attrgetter("turn_ns"))
            for run, limits in (*[(execute, settings)] * 3, (self._execute_lower, self._lower_limits))
        )
        self._plain.then = self._isolated.then = self._lower.dispatch
        # When an image of the usual class came last, seconds, and how many since an image of the lower class left.
        self._came, self._since_lower = float("-inf"), 0

    @property
    def waiting(self) -> int:
        """The number of images that no batch has taken yet."""
        return sum(batcher.waiting for batcher in self._batchers)

    @property
    def waited(self) -> tuple[int, float]:
        """How many batches waited for the clients of the batch before, and for how many seconds together."""
        each = [batcher.batching for batcher in self._batchers]
        return sum(batching.waits for batching in each), sum(batching.waited_s for batching in each)

    def prepare(self, image: bytes, item: Item, position: int, trace: Trace) -> Queued:
        """Make an image of a request ready to wait; what the image declares is read here, once."""
        found = self._probe(image)
        isolated, batches_before = found.isolated_pixels, position // self._settings().max_batch_size
        return Queued(
            image,
            replace(item, position=position, probe=found),
            ImageTrace(trace, item.queued_ns, len(image)),
            isolated,
            max(len(image), isolated),
            item.queued_ns + batches_before * BATCHES_APART_NS,
        )

    def submit(self, queued: Queued) -> asyncio.Future[AnswerOrError]:
        """Add an image; the future is its outcome. Cancelling it takes an image that waits out of its batch."""
        if self._knows is not None and self._knows(queued.image, queued.item):
            return self._known.submit(queued)
        if queued.item.options.is_lower:
            return self._lower.submit(queued)
        self._came, self._since_lower = time.monotonic(), self._since_lower + 1
        is_plain = queued.item.probe is not None and queued.item.probe.is_plain
        return (self._plain if is_plain else self._isolated).submit(queued)

    def _lower_limits(self) -> IngressSettings:
        """Return the limits of the lower class, which takes what the usual class leaves, and a small share at least."""
        settings = self._settings()
        if time.monotonic() >= self._came + SENDS_S:
            return settings
        usual = (self._plain, self._isolated)
        is_idle = not any(each.waiting or each.batching.in_flight for each in usual)
        slots = 1 if is_idle or self._since_lower >= USUAL_PER_LOWER else 0
        return settings.model_copy(update={"max_batch_size": 1, "max_concurrent_batches": slots})

    async def _execute_lower(self, batch: Sequence[Queued], deliver: Deliver[AnswerOrError]) -> None:
        self._since_lower = 0
        await self._execute(batch, deliver)

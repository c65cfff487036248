"""Where admitted images wait: single images in, batches through the graph."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from deployments.contract import clock
from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError
from deployments.contract.image_probe import ImageProbe
from deployments.contract.item import Item
from deployments.contract.options import LOWER
from deployments.ingress.batching import Batching, LowPriorityBatching
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import ImageTrace, Trace

# What an event loop's timers are exact to, seconds: for less, nobody waits.
TICK_S = 0.001
# A request may hold 64 images, and one that comes a moment later shall not wait for all of them. So the images beyond
# its first batch take their turns as if they came one batch after the other.
BATCHES_APART_NS = 200_000_000
AnswerOrError = Answer | EnsembleError
Outcome = asyncio.Future[AnswerOrError]
# Some of a batch's images, by their positions in it, and the outcome of each.
Outcomes = tuple[Sequence[int], Sequence[AnswerOrError]]


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


# Executes a batch, and yields outcomes as they come.
Execute = Callable[[Sequence[Queued]], AsyncIterator[Outcomes]]


class Batcher:
    """Gathers images and hands them on in batches, by their turns, in the order of arrival.

    An image whose turn is still to come leaves if no other waits, but not in a batch with others.
    """

    def __init__(
        self, execute: Execute, settings: Callable[[], IngressSettings], batching: Batching | None = None
    ) -> None:
        """Create a batcher.

        Args:
            execute: receives each batch, and yields each image's outcome once.
            settings: returns the limits in force.
            batching: decides when batches leave; default: a `Batching` of the limits.
        """
        self._execute, self._settings = execute, settings
        self.batching = batching or Batching(settings, time.monotonic)
        self._pending: dict[Outcome, Queued] = {}
        self._running: set[asyncio.Task[None]] = set()
        # Futures with their results or exceptions, and the methods that set them.
        self._outcomes: deque[tuple[Outcome, Any, Callable[[Outcome, Any], None]]] = deque()
        self._timer: asyncio.Handle | None = None
        # Called when no more batches leave for now.
        self.then: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """The number of items that no batch has taken yet."""
        return len(self._pending)

    def submit(self, item: Queued) -> Outcome:
        """Add an item; the future is its result. Cancelling it takes an item that waits out of its batch."""
        loop = asyncio.get_running_loop()
        future: Outcome = loop.create_future()
        self._pending[future] = item
        future.add_done_callback(self._remove)
        self.batching.arrived(len(self._pending))
        if len(self._pending) >= self._settings().max_batch_size:
            self.dispatch()
        else:
            # What arrives in this turn of the event loop leaves together.
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_soon(self.dispatch)
        return future

    def _remove(self, future: Outcome) -> None:
        self._pending.pop(future, None)

    def dispatch(self) -> None:
        """Form the batches that may leave now, and set the timer for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._pending and (leaves_at := self.batching.leaves_at(len(self._pending))) is not None:
            wait_s = leaves_at - time.monotonic()
            if wait_s > TICK_S:
                self._timer = loop.call_later(wait_s, self.dispatch)
                return
            # In a context of its own: in a request's, Serve would cancel the whole batch when that one client leaves.
            batch = self._cut()
            task = loop.create_task(self._process(batch, self.batching.left(len(batch))), context=Context())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self.then is not None:
            self.then()

    def _cut(self) -> dict[Outcome, Queued]:
        batch: dict[Outcome, Queued] = {}
        total, settings, now = 0, self._settings(), clock.now_ns()
        most = 1 if self.batching.leaves_alone else settings.max_batch_size
        turns = {future: item.turn_ns for future, item in self._pending.items()}
        waiting = sorted(turns, key=turns.__getitem__)
        has_due = turns[waiting[0]] <= now
        for future in waiting:
            item = self._pending[future]
            total += item.size
            if has_due and turns[future] > now:
                break
            if len(batch) == most or (batch and total > settings.max_batch_bytes):
                break
            batch[future] = item
        for future in batch:
            del self._pending[future]
            future.remove_done_callback(self._remove)
        return batch

    async def _process(self, batch: dict[Outcome, Queued], left: float) -> None:
        """Run a batch that left at a time by `Batching`'s clock; the next one may leave when it has ended."""
        waiting = dict(enumerate(batch))
        try:
            async for positions, outcomes in self._execute(list(batch.values())):
                self._deliver(waiting, positions, outcomes)
        except Exception as err:
            self._deliver(waiting, list(waiting), [err] * len(waiting), asyncio.Future.set_exception)
        finally:
            # Whatever happened, nobody waits for ever.
            for future in waiting.values():
                future.cancel()
            self.batching.ended(len(batch), left)
            self.dispatch()

    def _deliver(
        self,
        waiting: dict[int, Outcome],
        positions: Sequence[int],
        results: Sequence[Any],
        resolve: Callable[[Outcome, Any], None] = asyncio.Future.set_result,
    ) -> None:
        """Resolve one future now, and one per turn of the loop: the next batch leaves before all are answered."""
        is_idle = not self._outcomes
        for position, result in zip(positions, results, strict=True):
            self._outcomes.append((waiting.pop(position), result, resolve))
        if is_idle and self._outcomes:
            self._resolve_next()

    def _resolve_next(self) -> None:
        future, result, resolve = self._outcomes.popleft()
        if not future.done():
            resolve(future, result)
        if self._outcomes:
            asyncio.get_running_loop().call_soon(self._resolve_next)


class Queue:
    """Gathers images into batches; slow kinds of images have a batcher of their own."""

    def __init__(
        self,
        execute: Execute,
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
        self._settings, self._probe, self.knows = settings, probe, knows
        # Large images that are decoded apart go alone, by their size: the others of a batch would wait for the last.
        self._plain, self._isolated, self._known = (Batcher(execute, settings) for _ in range(3))
        normal = (self._plain, self._isolated)
        deciding = [each.batching for each in normal]
        low = LowPriorityBatching(settings, time.monotonic, deciding, self._is_idle)
        self._low = Batcher(execute, settings, low)
        self._plain.then = self._isolated.then = self._low.dispatch
        self._batchers = (*normal, self._known, self._low)

    def _is_idle(self) -> bool:
        """Tell whether no image of normal priority waits or is in flight."""
        return not any(each.waiting or each.batching.in_flight for each in (self._plain, self._isolated))

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
        """Make an image of a request ready to wait; its declared size and format are read here, once."""
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

    def submit(self, queued: Queued) -> Outcome:
        """Add an image; the future is its outcome. Cancelling it takes an image that waits out of its batch."""
        if self.knows is not None and self.knows(queued.image, queued.item):
            return self._known.submit(queued)
        if queued.item.options.priority >= LOWER:
            return self._low.submit(queued)
        is_plain = queued.item.probe is not None and queued.item.probe.is_plain
        return (self._plain if is_plain else self._isolated).submit(queued)

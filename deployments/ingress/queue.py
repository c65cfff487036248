"""Where admitted images wait for their batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError
from deployments.contract.image_probe import Declared
from deployments.contract.item import Item
from deployments.ingress.batcher import Batcher, Deliver
from deployments.ingress.settings import IngressSettings
from deployments.observe.tracing import ImageTrace, Trace

Outcome = Answer | EnsembleError
# A request may hold 64 images, and one that comes a moment later shall not wait for all of them. So the images beyond
# its first batch take their turns as if they came one batch after the other.
BATCHES_APART_NS = 200_000_000


@dataclass(frozen=True, slots=True)
class Queued:
    """An image, or a member's pixels, that waits for its batch."""

    image: bytes
    item: Item
    image_trace: ImageTrace
    declared: Declared

    @property
    def isolated_pixels(self) -> int:
        """See `Declared.isolated_pixels`."""
        return self.declared.isolated_pixels

    @property
    def size(self) -> int:
        """What it adds to its batch, bytes; of an image that is decoded apart, its pixels if they are more."""
        return max(len(self.image), self.isolated_pixels)


class Queue:
    """Gathers images into batches; those that others must not wait for have a batcher of their own."""

    def __init__(
        self,
        execute: Callable[[Sequence[Queued], Deliver[Outcome]], Awaitable[None]],
        settings: Callable[[], IngressSettings],
        declared: Callable[[bytes], Declared],
        knows: Callable[[bytes, Item], bool] | None = None,
    ) -> None:
        """Set what a batch is given to, where the limits in force are read, what an image declares, and who knows it.

        An image that is known is answered from memory.
        """
        self._settings, self._declared, self._knows = settings, declared, knows
        # Large images that are decoded apart go alone, by their size: the others of a batch would wait for the last.
        self._batchers = self._plain, self._isolated, self._known = tuple(
            Batcher[Queued, Outcome](execute, lambda queued: queued.size, settings, self._turn_ns) for _ in range(3)
        )

    @property
    def waiting(self) -> int:
        """The number of images that no batch has taken yet."""
        return sum(batcher.waiting for batcher in self._batchers)

    @property
    def waited(self) -> tuple[int, float]:
        """How many batches waited for the clients of the batch before, and for how many seconds together."""
        each = [batcher.batching for batcher in self._batchers]
        return sum(batching.waits for batching in each), sum(batching.waited_s for batching in each)

    def _turn_ns(self, queued: Queued) -> int:
        before = queued.item.position // self._settings().max_batch_size
        return queued.item.queued_ns + before * BATCHES_APART_NS

    def queued(self, image: bytes, item: Item, trace: Trace) -> Queued:
        """An image as it is about to wait; what it declares is read here, once."""
        return Queued(image, item, ImageTrace(trace, item.queued_ns, len(image)), self._declared(image))

    def submit(self, image: Queued) -> asyncio.Future[Outcome]:
        """Add an image; the future is its outcome. Cancelling it takes an image that waits out of its batch."""
        if self._knows is not None and self._knows(image.image, image.item):
            return self._known.submit(image)
        return (self._plain if image.declared.is_plain else self._isolated).submit(image)

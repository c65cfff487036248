"""The ingress: admission, deadlines and batching, alike for every protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import DEADLINE_HINT, Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.declared import Declared, declared
from deployments.contract.errors import (
    DeadlineExceeded,
    EnsembleError,
    InvalidParameter,
    NotReady,
    RemoteUnavailable,
    Unloaded,
)
from deployments.contract.item import Item
from deployments.contract.nodes import Graph, Part, parts
from deployments.contract.options import Options
from deployments.contract.timing import Way
from deployments.ingress.admission import Admission
from deployments.ingress.arrivals import Arrival, Arrivals
from deployments.ingress.batcher import Batcher, Deliver
from deployments.ingress.options import DEFAULT
from deployments.ingress.settings import IngressSettings
from deployments.ingress.statistics import Statistics
from deployments.observe.observer import Observer
from deployments.observe.tracing import Passage, Trace, continue_trace

logger = logging.getLogger("ray.serve")

Outcome = Answer | EnsembleError
# Neither a cascade nor a cache answers for a member.
EVERY_MEMBER = Options(quality="full", cache="no-store")
OBSERVE_AFTER_S = 0.005
INTERNAL_HINT = "the server failed on this request; its log has the cause"


@dataclass(frozen=True, slots=True)
class Waiting:
    """An image that waits for its batch."""

    image: bytes
    item: Item
    passage: Passage
    declared: Declared

    @property
    def size(self) -> int:
        """What it adds to its batch, bytes; of an image that is decoded apart, its pixels if they are more."""
        apart = 0 if self.declared.is_plain else self.declared.pixels
        return max(len(self.image), apart)


class Ingress:
    """Takes encoded images one by one, sends them through the graph in batches, and answers each.

    Attributes:
        missing: the members that the last image was answered without, and the codes of their errors.
    """

    def __init__(
        self,
        graph: Graph,
        settings: IngressSettings,
        class_count: int,
        observer: Observer,
        knows: Callable[[bytes, Item], bool] | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Set what answers.

        Args:
            graph: what a batch passes.
            settings: the limits.
            class_count: the number of classes.
            observer: follows calls and batches.
            knows: whether the graph answers an image from memory; None where it remembers nothing.
            admission: the room that it shares with others; None for one of its own.
        """
        self._graph = graph
        self.observer = observer
        self.missing: Mapping[str, str] = {}
        self.statistics = Statistics()
        self._class_count = class_count
        self._admission = admission or Admission(lambda: self.settings)
        self._arrivals = Arrivals(self._admission, lambda: self.settings)
        # What may take seconds to decode, or not come back, has batches of its own, for which no other image waits.
        # Large ones among it go alone: the others of a batch would wait for the last.
        self._batcher = Batcher[Waiting, Outcome](self._run, lambda waiting: waiting.size, settings)
        self._isolated = Batcher[Waiting, Outcome](self._run, lambda waiting: waiting.size, settings)
        # Remembered images do not wait behind those that the members are asked about.
        self._knows = knows
        self._remembered = Batcher[Waiting, Outcome](self._run, lambda waiting: waiting.size, settings)
        self._batchers = self._batcher, self._isolated, self._remembered

    @property
    def waiting(self) -> int:
        """The number of images that no batch has taken yet."""
        return sum(batcher.waiting for batcher in self._batchers)

    @property
    def in_flight(self) -> int:
        """The number of images that are admitted and not yet answered."""
        return self._admission.images

    @property
    def settings(self) -> IngressSettings:
        """The limits in force."""
        return self._batcher.settings

    @settings.setter
    def settings(self, settings: IngressSettings) -> None:
        for batcher in self._batchers:
            batcher.settings = settings

    def check(self, settings: IngressSettings) -> None:
        """Any settings will do whose fields are in their bounds."""

    async def classify(
        self,
        images: Sequence[bytes],
        options: Options = DEFAULT,
        *,
        began: float | None = None,
        trace: Trace | None = None,
        by: Caller = ANYONE,
        places: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """Classify images together: each one's answer or its own error, in order.

        Args:
            images: encoded images.
            options: what the caller asked for; the deadline counts from when the request began.
            began: when that was, seconds since the epoch; default: now.
            trace: the call's trace; default: a new one, not sampled.
            by: who asks.
            places: the images' positions in the request; default: from 0 on.

        Raises:
            InvalidParameter: `top_k` is more than there are classes, or there are too many images.
            Overloaded: the images would exceed the number admitted, or those in flight take longer than they have left;
                none was classified.
            OverShare: they would exceed the caller's share of the room.
        """
        self.check_count(len(images))
        if options.top_k is not None and options.top_k > self._class_count:
            raise InvalidParameter(f"top_k must be between 1 and {self._class_count}, the number of classes")
        now = time.time()
        deadline = (began or now) + self._timeout_s(options)
        trace = trace or Trace(continue_trace(None))
        queued_ns = time.time_ns()
        item = Item(trace.parent, deadline, options, queued_ns, by=by)
        items = [replace(item, place=place) if place else item for place in places or range(len(images))]
        waiting = [
            Waiting(image, item, Passage(trace, queued_ns, len(image)), self._declared(image))
            for image, item in zip(images, items, strict=True)
        ]
        with self._admission.room(len(images), sum(map(len, images)), deadline - now, by, self._pixels(waiting)):
            futures = [self._batcher_for(each).submit(each) for each in waiting]
            try:
                await asyncio.wait(futures, timeout=deadline - now)
            finally:
                for future in futures:
                    future.cancel()
        outcomes = [DeadlineExceeded(DEADLINE_HINT) if f.cancelled() else f.result() for f in futures]
        told = [outcome.classification for outcome in outcomes if isinstance(outcome, Answer)]
        trace.degraded({name: code for answer in told for name, code in (answer.missing or {}).items()})
        if told and told[0].asked is not None:
            trace.asked(dict.fromkeys(name for answer in told for name in answer.asked or ()))
        return outcomes

    def _declared(self, image: bytes) -> Declared:
        """What an image declares."""
        return declared(image)

    def _batcher_for(self, waiting: Waiting) -> Batcher[Waiting, Outcome]:
        if self._knows is not None and self._knows(waiting.image, waiting.item):
            return self._remembered
        return self._batcher if waiting.declared.is_plain else self._isolated

    async def admit(self, by: Caller = ANYONE) -> None:
        """Raise unless there is room for an image more, as `Arrivals.admit` does."""
        await self._arrivals.admit(by)

    def arriving(self, options: Options = DEFAULT, by: Caller = ANYONE) -> AbstractAsyncContextManager[Arrival]:
        """Room for a request while its body arrives, as `Arrivals.arriving` gives it.

        It must arrive within its own time or the configured one, whichever is shorter.
        """
        # A caller may wait long for its answer, but not keep the room meanwhile.
        return self._arrivals.arriving(min(self._timeout_s(options), self._timeout_s(DEFAULT)), by)

    async def warm_up(self) -> Mapping[str, str]:
        """Send one image through the graph, so that every member has answered once.

        Returns:
            The code of each member whose server, somewhere else, is not there, or which is unloaded; a quorum goes on
            without it.

        Raises:
            EnsembleError: a node failed, or a member of ours did not answer.
        """
        # A BMP needs no encoder: 54 bytes of header and one grey pixel.
        header = b"BM" + np.array([58, 0, 54, 40, 1, 1], "<u4").tobytes() + np.array([1, 24], "<u2").tobytes()
        image = header + bytes(24) + b"\x80\x80\x80\x00"
        batch = await self._pass(Batch([image], (Item(continue_trace(None), options=EVERY_MEMBER),)))
        if (error := batch.items[0].error) is not None:
            raise error
        missing = batch.items[0].missing
        if set(missing.values()) - {RemoteUnavailable.code, Unloaded.code}:
            raise NotReady(f"members have not answered: {dict(missing)}")
        return missing

    def check_count(self, images: int) -> None:
        """Raise InvalidParameter if a request can't hold so many images."""
        if not 1 <= images <= self.settings.max_parts:
            raise InvalidParameter(f"a request holds 1 to {self.settings.max_parts} images; this one has {images}")

    def _pixels(self, waiting: Sequence[Waiting]) -> int:
        """What the images that are decoded apart declare together."""
        most = self.settings.max_in_flight_pixels
        # One that declares more by itself is refused by its size, and takes no time.
        apart = (each.declared.pixels for each in waiting if not each.declared.is_plain)
        return sum(pixels for pixels in apart if pixels <= most)

    def _timeout_s(self, options: Options) -> float:
        return (options.timeout_ms or self.settings.timeout_ms) / 1000

    async def _run(self, waiting: Sequence[Waiting], deliver: Deliver[Outcome]) -> None:
        start_ns = time.time_ns()
        passages = [each.passage for each in waiting]

        def on(positions: Sequence[int], part: Batch[Sequence[Answer]]) -> None:
            answers = iter(part.payload)
            outcomes: list[Outcome] = []
            for position, item in zip(positions, part.items, strict=True):
                passage = passages[position]
                passage.done_ns = time.time_ns()
                way = passage.trace.way = Way(passage.queued_ns, start_ns, item.steps)
                outcome = next(answers) if item.error is None else item.error
                if item.options.timings and isinstance(outcome, Answer):
                    outcome = Answer(replace(outcome.classification, timings=way.timings()), outcome.probabilities)
                outcomes.append(outcome)
            deliver(positions, outcomes)

        batch = await self._pass(Batch([each.image for each in waiting], tuple(each.item for each in waiting)), on)
        self.missing = batch.items[-1].missing
        # Once the answers are on their way; and should it fail, they are.
        asyncio.get_running_loop().call_later(OBSERVE_AFTER_S, self._observe, passages, start_ns, time.time_ns(), batch)

    def _observe(self, passages: Sequence[Passage], start_ns: int, end_ns: int, batch: Batch[Sequence[Answer]]) -> None:
        self.statistics.batch(passages, start_ns, end_ns, batch)
        self.observer.batch(passages, start_ns, end_ns, batch)

    async def _pass(
        self,
        images: Batch[Sequence[bytes]],
        leave: Callable[[Sequence[int], Batch[Sequence[Answer]]], None] = lambda *_: None,
    ) -> Batch[Sequence[Answer]]:
        """The graph's answer, in which every image that it gives none to has the error.

        Args:
            images: encoded.
            leave: given the images that are done, by their positions, before others of the batch may be.
        """
        done: list[Part] = []
        deadlines = [item.deadline for item in images.items if item.deadline is not None]
        patience = max(deadlines) - time.time() if len(deadlines) == len(images.items) else None
        error: EnsembleError = EnsembleError(INTERNAL_HINT)
        try:
            # A pass that hangs would hold its place for ever, while nobody waits for it any more.
            async with asyncio.timeout(patience):
                async for positions, part in parts(self._graph, images):
                    done.append((positions, part))
                    leave(positions, part)
                return Batch.join(done)
        except TimeoutError:
            error = DeadlineExceeded(DEADLINE_HINT)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            logger.exception("a call to a node was cancelled")
        except Exception as err:
            # Nothing of a node's failure is the caller's to see: it gets a code, the log the cause.
            logger.exception("the graph failed on a batch of %d; %s", len(images.items), images.traces)
            if isinstance(err, EnsembleError):
                error = err
        left = sorted(set(range(len(images.items))).difference(*(positions for positions, _ in done)))
        failed: Batch[Sequence[Answer]] = Batch([], tuple(replace(images.items[i], error=error) for i in left))
        leave(left, failed)
        return Batch.join([*done, (left, failed)])

"""The ingress: admits images, queues them, and answers each by its deadline, alike for every protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.autoscaling_stats import AutoscalingStats
from deployments.contract.batch import DEADLINE_HINT, Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import DeadlineExceeded, InvalidParameter, NotReady, RemoteUnavailable, Unloaded
from deployments.contract.image_probe import Declared, declared
from deployments.contract.item import Item
from deployments.contract.nodes import Graph
from deployments.contract.options import Options
from deployments.ingress.admission import AdmissionController
from deployments.ingress.bitmap import bitmap
from deployments.ingress.execution import Execution
from deployments.ingress.options import DEFAULT
from deployments.ingress.queue import Outcome, Queue, Queued
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer
from deployments.observe.tracing import Trace, continue_trace

# Neither a cascade nor a cache answers for a member.
EVERY_MEMBER = Options(quality="full", cache="no-store")
GREY_PIXEL = bitmap(np.full((1, 1, 3), 128, np.uint8))


class Ingress:
    """Takes images one by one, sends them through a graph in batches, and answers each.

    Attributes:
        capacity: admits requests; protocols call it as a request comes.
        queue: where admitted images wait.
        demand: counts the requests that were admitted.
    """

    def __init__(
        self, capacity: AdmissionController, execution: Execution, queue: Queue, class_count: int, observer: Observer
    ) -> None:
        """Compose it; `of_images` and `of_pixels` do."""
        self.capacity, self.execution, self.observer = capacity, execution, observer
        self.queue, self._class_count = queue, class_count
        self.demand = AutoscalingStats()

    @classmethod
    def of_images(
        cls,
        graph: Graph,
        settings: IngressSettings,
        class_count: int,
        observer: Observer,
        knows: Callable[[bytes, Item], bool] | None = None,
    ) -> Self:
        """An ingress of encoded images; `knows` says whether the graph answers one from a cache, None for no cache."""
        capacity, execution = AdmissionController(settings), Execution(graph, observer.batch)
        queue = Queue(execution, lambda: capacity.settings, declared, knows)
        return cls(capacity, execution, queue, class_count, observer)

    def of_pixels(self, member: Graph) -> Ingress:
        """An ingress of one member's pixels, which share the capacity of this one."""
        execution = Execution(member, partial(self.observer.batch, of_ensemble=False))
        # Pixels have no header, whatever they begin with, and nothing of them is decoded.
        queue = Queue(execution, lambda: self.settings, lambda _: Declared(is_plain=True))
        return Ingress(self.capacity, execution, queue, self._class_count, self.observer)

    @property
    def settings(self) -> IngressSettings:
        """The limits in force."""
        return self.capacity.settings

    @settings.setter
    def settings(self, settings: IngressSettings) -> None:
        self.capacity.settings = settings

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
            images: encoded images, or a member's pixels.
            options: what the caller asked for; the deadline counts from when the request began.
            began: when that was, seconds since the epoch; default: now.
            trace: the call's trace; default: a new one, not sampled.
            by: the caller.
            places: the images' positions in the request; default: from 0 on.

        Raises:
            InvalidParameter: `top_k` is more than there are classes, or there are too many images.
            Overloaded: the images would exceed the number admitted, or those in flight take longer than they have left;
                none was classified.
            OverShare: they would exceed the caller's share of the places.
        """
        self.capacity.check_count(len(images))
        if options.top_k is not None and options.top_k > self._class_count:
            raise InvalidParameter(f"top_k must be between 1 and {self._class_count}, the number of classes")
        now = time.time()
        deadline = (began or now) + self.capacity.timeout_s(options)
        trace = trace or Trace(continue_trace(None))
        item = Item(trace.parent, deadline, options, time.time_ns(), caller=by)
        queued = [
            self.queue.queued(image, replace(item, position=place) if place else item, trace)
            for image, place in zip(images, places or range(len(images)), strict=True)
        ]
        with self.capacity.admitted(queued, deadline - now, by), self.demand.call():
            outcomes = await self._outcomes(queued, deadline - now)
            # If those counted whose time is over, the rate would be that of arrivals, and every wait within its time.
            self.capacity.answered(sum(not isinstance(outcome, DeadlineExceeded) for outcome in outcomes))
        _note(trace, outcomes)
        return outcomes

    async def _outcomes(self, queued: Sequence[Queued], timeout_s: float) -> list[Outcome]:
        """Each image's answer or error, once all have theirs or the time is over."""
        futures = [self.queue.submit(each) for each in queued]
        late = asyncio.get_running_loop().call_later(timeout_s, _expire, futures)
        try:
            return [await future for future in futures]
        finally:
            late.cancel()
            for future in futures:
                future.cancel()

    async def warm_up(self) -> Mapping[str, str]:
        """Send one image through the graph, so that every member has answered once.

        Returns:
            The code of each member whose server, somewhere else, is not there, or which is unloaded; a quorum goes on
            without it. `execution.missing` says the same from then on.

        Raises:
            EnsembleError: a node failed, or a member of ours did not answer.
        """
        item = Item(continue_trace(None), options=EVERY_MEMBER)
        batch = await self.execution.run(Batch([GREY_PIXEL], (item,)))
        if (error := batch.items[0].error) is not None:
            raise error
        missing = batch.items[0].missing
        if set(missing.values()) - {RemoteUnavailable.code, Unloaded.code}:
            raise NotReady(f"members have not answered: {dict(missing)}")
        self.execution.missing = missing
        return missing


def _expire(futures: Sequence[asyncio.Future[Outcome]]) -> None:
    """Let images whose time is over have that as their outcome, and leave their batch if they still wait."""
    for future in futures:
        if not future.done():
            future.set_result(DeadlineExceeded(DEADLINE_HINT))


def _note(trace: Trace, outcomes: Sequence[Outcome]) -> None:
    """Note on a request's trace which members its images were answered without, and which a cascade asked."""
    if trace.span is None:
        return
    answers = [outcome.classification for outcome in outcomes if isinstance(outcome, Answer)]
    if missing := {name: code for answer in answers for name, code in (answer.missing or {}).items()}:
        trace.span.set_attribute("ensemble.missing", [f"{name}: {code}" for name, code in missing.items()])
    if answers and answers[0].asked is not None:
        asked = dict.fromkeys(name for answer in answers for name in answer.asked or ())
        trace.span.set_attribute("ensemble.asked", list(asked))

"""The ingress: admits images, queues them, and answers each by its deadline, alike for every protocol."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Self

from msgspec.structs import replace
from opentelemetry.trace import Span

from deployments.contract import clock
from deployments.contract.answer import Answer
from deployments.contract.batch import DEADLINE_HINT, Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import (
    INTERNAL_HINT,
    DeadlineExceeded,
    EnsembleError,
    InvalidParameter,
    NotReady,
    RemoteUnavailable,
    Unloaded,
)
from deployments.contract.image_probe import ImageProbe, probe
from deployments.contract.item import Item, Timeline
from deployments.contract.nodes import Graph, Part, as_flow
from deployments.contract.options import LOWER, Options
from deployments.ingress.admission import AdmissionController
from deployments.ingress.options import DEFAULT, OptionReaders, noted
from deployments.ingress.queue import AnswerOrError, Outcomes, Queue, Queued
from deployments.ingress.settings import IngressSettings
from deployments.ingress.statistics import Statistics
from deployments.observe.observer import AutoscalingStats, ImageTrace, Observer, Trace, continue_trace

# No feature answers for a member.
EVERY_MEMBER = Options(quality="full", cache="no-store")
# The code of a member that an operator has left out.
LEFT_OUT = Unloaded.code
# A bitmap.
GREY_PIXEL = struct.pack("<2s6I2H24x4B", b"BM", 58, 0, 54, 40, 1, 1, 1, 24, 128, 128, 128, 0)
logger = logging.getLogger("ray.serve")
Answered = Batch[Sequence[Answer]]
# Given a batch's image_traces, when it left the queue and when it was back, nanoseconds since the epoch, and the batch.
Observe = Callable[[Sequence[ImageTrace], int, int, Answered], None]
OBSERVE_AFTER_S = 0.005


class Execution:
    """Executes a graph on the batches of a queue.

    Attributes:
        statistics: counts of these models.
        missing: the members that the last image was answered without, and the codes of their errors.
    """

    def __init__(self, graph: Graph, observe: Observe) -> None:
        """Set what a batch goes through, and who follows batches."""
        self._graph, self._observe = as_flow(graph), observe
        self.statistics = Statistics()
        self.missing: Mapping[str, str] = {}

    async def __call__(self, queued: Sequence[Queued]) -> AsyncIterator[Outcomes]:
        """Execute the graph on a batch; yield the images' outcomes as soon as they are there, and end their traces."""
        start_ns = clock.now_ns()
        image_traces = [each.image_trace for each in queued]
        images = Batch([each.image for each in queued], tuple(each.item for each in queued))
        parts: list[Part] = []
        async for positions, part in self.run(images):
            parts.append((positions, part))
            answers, outcomes = iter(part.payload), list[AnswerOrError]()
            for position, item in zip(positions, part.items, strict=True):
                image_trace = image_traces[position]
                image_trace.done_ns = clock.now_ns()
                timeline = image_trace.trace.timeline = Timeline(image_trace.queued_ns, start_ns, item.steps)
                outcome = next(answers) if item.error is None else item.error
                if item.options.timings and isinstance(outcome, Answer):
                    outcome = Answer(replace(outcome.classification, timings=timeline.timings()), outcome.probabilities)
                outcomes.append(outcome)
            yield positions, outcomes
        self.missing = parts[-1][1].items[-1].missing
        # Once the answers are on their way; and should it fail, they are.
        seen = image_traces, start_ns, clock.now_ns(), parts
        asyncio.get_running_loop().call_later(OBSERVE_AFTER_S, self._record, *seen)

    def _record(self, image_traces: Sequence[ImageTrace], start_ns: int, end_ns: int, parts: Sequence[Part]) -> None:
        batch = Batch.join(parts)
        self.statistics.batch(image_traces, start_ns, end_ns, batch)
        self._observe(image_traces, start_ns, end_ns, batch)

    async def run(self, images: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """Run the graph; yield images as they are done, an error with every image that the graph gives no answer."""
        done: list[Part] = []
        deadlines = [item.deadline for item in images.items if item.deadline is not None]
        patience = max(deadlines) - clock.now() if len(deadlines) == len(images.items) else None
        try:
            # An execution that hangs would hold its concurrency slot for ever, while nobody waits for it any more.
            async with asyncio.timeout(patience):
                async for positions, part in self._graph.parts(images):
                    done.append((positions, part))
                    yield positions, part
            return
        except TimeoutError:
            error: EnsembleError = DeadlineExceeded(DEADLINE_HINT)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            error = EnsembleError(INTERNAL_HINT)
            logger.exception("a call to a node was cancelled")
        except Exception as err:
            error = _reported(err, images)
        yield _failed(images, done, error)


def _reported(err: Exception, images: Batch[Sequence[bytes]]) -> EnsembleError:
    """Log why the graph failed on a batch, and return the error that the callers see."""
    # Nothing of a node's failure is the caller's to see: it gets a code, and the log the cause if there is one.
    error = EnsembleError(INTERNAL_HINT)
    if isinstance(err, EnsembleError):
        error = err.with_traceback(None) if err.retry else err
    words, ids = f"the graph failed on a batch of %d ({error.code}); %s", {"trace_ids": images.trace_ids}
    logger.error(words, len(images.items), images.traces, exc_info=None if error.retry else err, extra=ids)
    return error


def _failed(images: Batch[Sequence[bytes]], done: Sequence[Part], error: EnsembleError) -> Part:
    """Give the error to the images that are in none of the parts."""
    left = sorted(set(range(len(images.items))).difference(*(positions for positions, _ in done)))
    return left, Batch([], tuple(replace(images.items[position], error=error) for position in left))


class Ingress:
    """Takes images one by one, sends them through a graph in batches, and answers each.

    Attributes:
        admission: admits requests; protocols call it as a request comes.
        queue: where admitted images wait.
        autoscaling_stats: counts the requests that were admitted.
        readers: of the options that features add.
    """

    def __init__(
        self, admission: AdmissionController, execution: Execution, queue: Queue, class_count: int, observer: Observer
    ) -> None:
        """Compose an ingress, for `of_images` and `of_pixels`."""
        self.admission, self.execution, self.observer = admission, execution, observer
        self.queue, self._class_count = queue, class_count
        self.autoscaling_stats = AutoscalingStats()
        self.readers: OptionReaders = {}

    @classmethod
    def of_images(cls, graph: Graph, settings: IngressSettings, class_count: int, observer: Observer) -> Self:
        """Make an ingress of encoded images."""
        admission, execution = AdmissionController(settings), Execution(graph, observer.batch)
        queue = Queue(execution, partial(getattr, admission, "settings"), probe)
        return cls(admission, execution, queue, class_count, observer)

    def of_pixels(self, member: Graph) -> Ingress:
        """Make an ingress of one member's pixels, which share the admission of this ingress."""
        execution = Execution(member, partial(self.observer.batch, of_ensemble=False))
        # Pixels have no header, whatever they begin with, and nothing of them is decoded.
        queue = Queue(execution, partial(getattr, self.admission, "settings"), lambda _: ImageProbe(is_plain=True))
        return Ingress(self.admission, execution, queue, self._class_count, self.observer)

    @property
    def settings(self) -> IngressSettings:
        """The limits in force."""
        return self.admission.settings

    @settings.setter
    def settings(self, settings: IngressSettings) -> None:
        self.admission.settings = settings

    async def classify(
        self,
        images: Sequence[bytes],
        options: Options = DEFAULT,
        *,
        began: float | None = None,
        trace: Trace | None = None,
        by: Caller = ANYONE,
        places: Sequence[int] | None = None,
    ) -> list[AnswerOrError]:
        """Classify images together: each one's answer or its own error, in order.

        Args:
            images: encoded images, or a member's pixels.
            options: what the caller asked for; the deadline counts from when the request began.
            began: when that was, seconds since the epoch; default: now.
            trace: the call's trace; default, and for a call that is not observed: a new one, not sampled.
            by: the caller.
            places: the images' positions in the request; default: from 0 on.

        Raises:
            InvalidParameter: `top_k` is more than there are classes, a feature refuses an option, or there are too many
                images.
            Overloaded: the images would exceed the number admitted, or those in flight take longer than they have left;
                none was classified.
            OverShare: they would exceed the caller's share of the places.
        """
        if len(images) != 1:
            self.admission.check_count(len(images))
        if options.top_k is not None and options.top_k > self._class_count:
            raise InvalidParameter(f"top_k must be between 1 and {self._class_count}, the number of classes")
        notes, now = noted(options, self.readers) if options.added else {}, clock.now()
        deadline = (began or now) + (options.timeout_ms or self.admission.settings.timeout_ms) / 1000
        if trace is None or not trace.parent:
            trace = Trace(continue_trace(None))
        size, is_lower, left_s = sum(map(len, images)), options.priority >= LOWER, deadline - now
        with self.admission.admitted(len(images), size, by, left_s, is_lower):
            item = Item(trace.parent, deadline, options, clock.now_ns(), caller=by, notes=notes)
            queued = [
                self.queue.prepare(image, item, place, trace)
                for image, place in zip(images, places or range(len(images)), strict=True)
            ]
            most = self.admission.settings.max_in_flight_pixels
            # An image that declares more than the limit by itself is refused by its size, and takes no time.
            pixels = sum(each.isolated_pixels for each in queued if each.isolated_pixels <= most)
            with self.admission.isolated(pixels) if pixels else nullcontext(), self.autoscaling_stats.call():
                outcomes = await self._outcomes(queued, left_s)
                # If those counted whose time is over, the rate would be that of arrivals, and every wait in its time.
                self.admission.answered(sum(not isinstance(outcome, DeadlineExceeded) for outcome in outcomes))
        if trace.span is not None:
            _note(trace.span, outcomes)
        return outcomes

    async def _outcomes(self, queued: Sequence[Queued], timeout_s: float) -> list[AnswerOrError]:
        """Wait until every image is done or the time is over; return each image's answer or error."""
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
            The code of each member whose server, somewhere else, is not there, or which is left out; a quorum goes on
            without it. `execution.missing` says the same from then on.

        Raises:
            EnsembleError: a node failed, or a member of ours did not answer.
        """
        item = Item(continue_trace(None), options=EVERY_MEMBER)
        [(_, batch)] = [part async for part in self.execution.run(Batch([GREY_PIXEL], (item,)))]
        if (error := batch.items[0].error) is not None:
            raise error
        missing = batch.items[0].missing
        if set(missing.values()) - {RemoteUnavailable.code, LEFT_OUT}:
            raise NotReady(f"members have not answered: {dict(missing)}")
        self.execution.missing = missing
        return missing


def _expire(futures: Sequence[asyncio.Future[AnswerOrError]]) -> None:
    """Give DeadlineExceeded to images whose time is over, which then leave their batch if they still wait."""
    for future in futures:
        if not future.done():
            future.set_result(DeadlineExceeded(DEADLINE_HINT))


def _note(span: Span, outcomes: Sequence[AnswerOrError]) -> None:
    """Note on a request's span which members its images were answered without, and which were called in turn."""
    missing, asked = dict[str, str](), dict[str, None]()
    for outcome in outcomes:
        if isinstance(outcome, Answer):
            missing |= outcome.classification.missing or {}
            asked |= dict.fromkeys(outcome.classification.asked or ())
    if missing:
        span.set_attribute("ensemble.missing", [f"{name}: {code}" for name, code in missing.items()])
    if asked:
        span.set_attribute("ensemble.asked", list(asked))

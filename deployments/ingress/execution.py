"""Executes the graph on batches: whatever goes wrong, each image gets its answer or an error."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import DEADLINE_HINT, Batch
from deployments.contract.errors import INTERNAL_HINT, DeadlineExceeded, EnsembleError
from deployments.contract.nodes import Graph, Part, parts
from deployments.contract.timing import Timeline
from deployments.ingress.batcher import Deliver
from deployments.ingress.queue import Outcome, Queued
from deployments.ingress.statistics import Statistics
from deployments.observe.tracing import ImageTrace

logger = logging.getLogger("ray.serve")

Answered = Batch[Sequence[Answer]]
# Given a batch's image_traces, when it left the queue and when it was back, nanoseconds since the epoch, and the batch.
Observe = Callable[[Sequence[ImageTrace], int, int, Answered], None]
OBSERVE_AFTER_S = 0.005


class Execution:
    """Executes a graph on the batches of a queue.

    Attributes:
        statistics: what is counted of them.
        missing: the members that the last image was answered without, and the codes of their errors.
    """

    def __init__(self, graph: Graph, observe: Observe) -> None:
        """Set what a batch goes through, and who follows batches."""
        self._graph, self._observe = graph, observe
        self.statistics = Statistics()
        self.missing: Mapping[str, str] = {}

    async def __call__(self, queued: Sequence[Queued], deliver: Deliver[Outcome]) -> None:
        """Execute the graph on a batch, and deliver each image's outcome as soon as it is there."""
        start_ns = time.time_ns()
        image_traces = [each.image_trace for each in queued]

        def answered(positions: Sequence[int], part: Answered) -> None:
            deliver(positions, _outcomes([image_traces[position] for position in positions], start_ns, part))

        images = Batch([each.image for each in queued], tuple(each.item for each in queued))
        batch = await self.run(images, answered)
        self.missing = batch.items[-1].missing
        # Once the answers are on their way; and should it fail, they are.
        asyncio.get_running_loop().call_later(
            OBSERVE_AFTER_S, self._record, image_traces, start_ns, time.time_ns(), batch
        )

    def _record(self, image_traces: Sequence[ImageTrace], start_ns: int, end_ns: int, batch: Answered) -> None:
        self.statistics.batch(image_traces, start_ns, end_ns, batch)
        self._observe(image_traces, start_ns, end_ns, batch)

    async def run(
        self, images: Batch[Sequence[bytes]], answered: Callable[[Sequence[int], Answered], None] = lambda *_: None
    ) -> Answered:
        """The graph's answer, in which every image that it gives none to has the error.

        `answered` gets the images that are done, by their positions, before others of the batch may be.
        """
        done: list[Part] = []
        deadlines = [item.deadline for item in images.items if item.deadline is not None]
        patience = max(deadlines) - time.time() if len(deadlines) == len(images.items) else None
        error: EnsembleError = EnsembleError(INTERNAL_HINT)
        try:
            # An execution that hangs would hold its concurrency slot for ever, while nobody waits for it any more.
            async with asyncio.timeout(patience):
                async for positions, part in parts(self._graph, images):
                    done.append((positions, part))
                    answered(positions, part)
                return Batch.join(done)
        except TimeoutError:
            error = DeadlineExceeded(DEADLINE_HINT)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            logger.exception("a call to a node was cancelled")
        except Exception as err:
            # Nothing of a node's failure is the caller's to see: it gets a code, and the log the cause if there is one.
            if isinstance(err, EnsembleError):
                error = err.with_traceback(None) if err.retry else err
            words, ids = f"the graph failed on a batch of %d ({error.code}); %s", {"trace_ids": images.trace_ids}
            logger.error(words, len(images.items), images.traces, exc_info=not error.retry, extra=ids)
        left = sorted(set(range(len(images.items))).difference(*(positions for positions, _ in done)))
        failed: Answered = Batch([], tuple(replace(images.items[i], error=error) for i in left))
        answered(left, failed)
        return Batch.join([*done, (left, failed)])


def _outcomes(image_traces: Sequence[ImageTrace], start_ns: int, part: Answered) -> list[Outcome]:
    """Each image's answer or error; its image_trace ends here."""
    answers = iter(part.payload)
    outcomes: list[Outcome] = []
    for image_trace, item in zip(image_traces, part.items, strict=True):
        image_trace.done_ns = time.time_ns()
        timeline = image_trace.trace.timeline = Timeline(image_trace.queued_ns, start_ns, item.steps)
        outcome = next(answers) if item.error is None else item.error
        if item.options.timings and isinstance(outcome, Answer):
            outcome = Answer(replace(outcome.classification, timings=timeline.timings()), outcome.probabilities)
        outcomes.append(outcome)
    return outcomes

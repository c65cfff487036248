"""The counts of a model, as the statistics extension of the Open Inference Protocol has it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from deployments.contract import clock
from deployments.contract.batch import Batch
from deployments.observe.observer import ImageTrace


class Duration(msgspec.Struct):
    """How often something was done, and the nanoseconds that it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, times: int = 1) -> None:
        """Add `times` events of `ns` nanoseconds each."""
        self.count += times
        self.ns += max(0, ns) * times


class InferenceStatistics(msgspec.Struct):
    """The images' times: from arrival to answer, of it in the queue, and in the graph before, at and after the members.

    The times in the graph are times of the whole batch, which an image that is done before does not wait for.
    """

    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    queue: Duration = msgspec.field(default_factory=Duration)
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    cache_hit: Duration = msgspec.field(default_factory=Duration)
    cache_miss: Duration = msgspec.field(default_factory=Duration)


class BatchStatistics(msgspec.Struct):
    """The times of the batches of one size."""

    batch_size: int
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)


class ModelStatistics(msgspec.Struct):
    """This process' counts of a model since its start; each ingress replica counts its own images."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class AllStatistics(msgspec.Struct):
    """The counts of models since the start."""

    model_stats: list[ModelStatistics]


class Statistics:
    """Counts batches."""

    def __init__(self) -> None:
        self._images = InferenceStatistics()
        self._batches: dict[int, BatchStatistics] = {}
        self._last_ns = self._answered = self._executed = 0

    def batch(self, image_traces: Sequence[ImageTrace], start_ns: int, end_ns: int, batch: Batch[Any]) -> None:
        """Count a batch that left the queue at `start_ns` and was back at `end_ns`, nanoseconds since the epoch."""
        for image_trace, item in zip(image_traces, batch.items, strict=True):
            outcome = self._images.success if item.error is None else self._images.fail
            outcome.add((image_trace.done_ns or end_ns) - image_trace.queued_ns)
        live = batch.live
        if not live:
            return
        size = len(batch.items)
        self._last_ns, self._answered, self._executed = end_ns, self._answered + len(live), self._executed + 1
        steps = batch.items[live[0]].steps
        first, last = (steps[0].note, steps[-1].note) if len(steps) > 1 else (None, None)
        before_ns = first.end_ns - first.start_ns if first else 0
        after_ns = last.end_ns - last.start_ns if last else 0
        infer_ns = end_ns - start_ns - before_ns - after_ns
        for image_trace in image_traces:
            self._images.queue.add(start_ns - image_trace.queued_ns)
        batches = self._batches.setdefault(size, BatchStatistics(size))
        for counted, times in ((self._images, size), (batches, 1)):
            counted.compute_input.add(before_ns, times)
            counted.compute_infer.add(infer_ns, times)
            counted.compute_output.add(after_ns, times)

    def reported(self, name: str, version: str) -> ModelStatistics:
        """Report the counts under the name and version of the model."""
        return ModelStatistics(
            name,
            version,
            clock.by_system_ns(self._last_ns) // 10**6 if self._last_ns else 0,
            self._answered,
            self._executed,
            self._images,
            [self._batches[size] for size in sorted(self._batches)],
        )

"""Observes calls, whatever their protocol, and batches: traces, metrics, and what features and autoscaling go by."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import getrandbits
from typing import Protocol

from opentelemetry.trace import Span, Status, StatusCode

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError
from deployments.contract.item import MAX_TRACED_LENGTH, AttributeValue, Item, Timeline
from deployments.observe.metrics import Metrics

# Source: https://www.w3.org/TR/trace-context/#traceparent-header
TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Calls whose durations are looked at. While another replica starts on the same cores, calls take longer for seconds: so
# many outlast that, and the median does not see the slowest half of them.
KEPT = 400


def continue_trace(trace_parent: str | None) -> str:
    """Return the caller's `traceparent` if it is valid; else a new one that is not sampled."""
    if trace_parent is not None and TRACE_PARENT.fullmatch(trace_parent):
        return trace_parent
    return f"00-{getrandbits(128) or 1:032x}-{getrandbits(64) or 1:016x}-00"


@dataclass(slots=True)
class Trace:
    """The trace of one request.

    Attributes:
        parent: the W3C `traceparent` of the root span.
        span: the root span; None if the trace is not sampled.
        timeline: of the request's image that was classified last; None if none was.
    """

    parent: str
    span: Span | None = None
    timeline: Timeline | None = None

    def end(self, attributes: Mapping[str, AttributeValue], fault: str | None) -> None:
        """End the root span; `fault` is the message of a failure of the server, if there was one."""
        if self.span is not None:
            self.span.set_attributes(attributes)
            if fault is not None:
                self.span.set_status(Status(StatusCode.ERROR, fault))
            self.span.end()


@dataclass(slots=True)
class ImageTrace:
    """An image's part of a trace.

    Attributes:
        trace: of its request.
        queued_ns: when it began to wait for a batch, nanoseconds since the epoch.
        size: of the encoded image, bytes.
        done_ns: when it was answered, which may be before the rest of its batch; 0 before.
    """

    trace: Trace
    queued_ns: int
    size: int
    done_ns: int = 0


@dataclass(slots=True)
class Call:
    """A client's call that is being answered.

    Attributes:
        started: when it began, by `time.perf_counter`.
        outcome: `ok`, `cancelled` or the code of its error.
        attributes: attributes that the root span gets at its end.
        fault: the message of a failure of the server, if there was one.
    """

    trace: Trace
    caller: Caller = ANYONE
    started: float = 0.0
    outcome: str = "ok"
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    fault: str | None = None

    def fail(self, error: EnsembleError) -> None:
        """Set the error that the call is answered with."""
        self.outcome = error.code
        self.attributes |= {"error.type": error.code, "error.message": error.message[:MAX_TRACED_LENGTH]}
        if error.is_fault:
            self.fault = error.message[:MAX_TRACED_LENGTH]


class Tracer(Protocol):
    """Makes the spans of requests and batches: `tracing.Tracing`."""

    def begin(
        self, trace_parent: str | None, trace_state: str | None, attributes: Mapping[str, AttributeValue]
    ) -> Trace:
        """Begin a request's trace, or continue the caller's by its W3C `traceparent` and `tracestate`, if any."""

    def record(self, image_traces: Sequence[ImageTrace], start_ns: int, end_ns: int, items: Sequence[Item]) -> None:
        """Make the spans of an answered batch, by when it left the queue and was answered, ns since the epoch."""

    def shutdown(self) -> None:
        """Export the spans that wait, and stop."""


class Watcher:
    """Counts calls and batches for a feature, which has `Observer.watch` call it; each method may be left as it is."""

    def request(self, outcome: str, seconds: float) -> None:
        """Count a call by its outcome and its duration."""

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count an answered batch of the ensemble, and the wait of the image that waited longest, seconds."""


class Observer:
    """Observes calls and batches."""

    def __init__(self, tracing: Tracer | None = None) -> None:
        """Set the tracing, if spans are exported."""
        self._tracing = tracing
        self._watchers: list[Watcher] = []
        self._metrics = Metrics()

    def watch(self, watcher: Watcher) -> None:
        """Let a feature count each call, and each answered batch of the ensemble, from now on."""
        self._watchers.append(watcher)

    @contextmanager
    def call(
        self, protocol: str, headers: Mapping[str, str], attributes: Mapping[str, AttributeValue]
    ) -> Iterator[Call]:
        """Observe a call by `http`, `grpc` or `handle`, which lasts until the end of the block.

        Its headers, or gRPC's metadata, continue the caller's trace by `traceparent` and `tracestate`.
        """
        started = time.perf_counter()
        parent = headers.get("traceparent")
        if self._tracing is None:
            trace = Trace(continue_trace(parent))
        else:
            known = {"ensemble.protocol": protocol, **attributes}
            trace = self._tracing.begin(parent, headers.get("tracestate"), known)
        call = Call(trace, started=started)
        try:
            yield call
        except EnsembleError as err:
            call.fail(err)
            raise
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            call.attributes["error.type"] = "cancelled"
            raise
        except Exception as err:
            call.outcome, call.fault = EnsembleError.code, type(err).__name__
            raise
        finally:
            if trace.span is not None:
                trace.end(call.attributes, call.fault)
            # In the loop's next turn, so that the answer does not wait for the count.
            seconds = time.perf_counter() - started
            asyncio.get_running_loop().call_soon(self._count, protocol, call.outcome, seconds)

    def _count(self, protocol: str, outcome: str, seconds: float) -> None:
        self._metrics.request(protocol, outcome, seconds)
        for each in self._watchers:
            each.request(outcome, seconds)

    def batch(
        self,
        image_traces: Sequence[ImageTrace],
        start_ns: int,
        end_ns: int,
        batch: Batch[Sequence[Answer]],
        *,
        of_ensemble: bool = True,
    ) -> None:
        """Observe an answered batch, which left the queue and was answered at these times, nanoseconds since the epoch.

        `of_ensemble` is false where one member answered that was called as a model of its own.
        """
        if self._tracing is not None:
            self._tracing.record(image_traces, start_ns, end_ns, batch.items)
        queue_wait_s = (start_ns - min(image_trace.queued_ns for image_trace in image_traces)) / 1e9
        self._metrics.batch(batch, queue_wait_s, of_ensemble)
        for each in self._watchers if of_ensemble else ():
            each.batch(batch, queue_wait_s)

    def close(self) -> None:
        """Export the spans that wait."""
        if self._tracing is not None:
            self._tracing.shutdown()


class AutoscalingStats:
    """What autoscaling goes by.

    Attributes:
        under_way: calls that have not ended.
        arrived: calls so far.
    """

    def __init__(self) -> None:
        self.under_way = self.arrived = 0
        self._alone: deque[float] = deque(maxlen=KEPT)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call, from its begin to its end."""
        alone, began = not self.under_way, time.perf_counter()
        self.under_way += 1
        self.arrived += 1
        try:
            yield
        except BaseException:
            # How long a failure or a departed client took says nothing.
            alone = False
            raise
        finally:
            self.under_way -= 1
            if alone:
                self._alone.append(time.perf_counter() - began)

    def stats(self) -> dict[str, float]:
        """Return the figures that a replica reports; `ensemble_features.scaling` reads them.

        `alone_s` is the median of how long a call took that began while no other was under way, seconds; 0 before any.
        `spread` is their variance, divided by the square of their mean, as their middle two thirds have it, and
        `alone_calls` how many these were.
        """
        alone = sorted(self._alone) or [0.0]
        low, median, high = (alone[len(alone) * sixth // 6] for sixth in (1, 3, 5))
        spread = ((high - low) / 2 / median) ** 2 if median else 1.0
        known = {"alone_s": median, "spread": spread, "alone_calls": float(len(self._alone))}
        return {"arrived": float(self.arrived), **known}

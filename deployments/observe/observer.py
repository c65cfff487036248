"""Observes calls, whatever their protocol, and batches: traces, metrics, and what features count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError
from deployments.contract.item import MAX_TRACED_LENGTH, AttributeValue
from deployments.observe.metrics import Metrics
from deployments.observe.tracing import ImageTrace, Trace, Tracing, continue_trace


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


class Watcher(Protocol):
    """Counts calls and batches for a feature, which has `Observer.watch` call it."""

    def request(self, outcome: str, seconds: float) -> None:
        """Count a call by its outcome and its duration."""

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count an answered batch of the ensemble, and the wait of the image that waited longest, seconds."""


class Observer:
    """Observes calls and batches."""

    def __init__(self, tracing: Tracing | None = None) -> None:
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

"""What is seen of a call, whatever its protocol: its trace and what is counted of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError
from deployments.contract.item import MOST_TOLD, AttributeValue
from deployments.observe.metrics import Metrics
from deployments.observe.stats import Stats
from deployments.observe.tracing import Passage, Trace, Tracing


@dataclass(slots=True)
class Call:
    """One call of a client, while it is answered.

    Attributes:
        trace: its trace.
        caller: who asks.
        started: when it began, by `time.perf_counter`.
        outcome: `ok`, `cancelled` or the code of its error.
        attributes: what the root span gets at its end.
        fault: what went wrong on the server's side, if something did.
    """

    trace: Trace
    caller: Caller = ANYONE
    started: float = 0.0
    outcome: str = "ok"
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    fault: str | None = None

    def fail(self, error: EnsembleError) -> None:
        """Note the error that the call is answered with."""
        self.outcome = error.code
        self.attributes |= {"error.type": error.code, "error.message": error.message[:MOST_TOLD]}
        if error.is_fault:
            self.fault = error.message[:MOST_TOLD]


class Observer:
    """Follows calls and batches."""

    def __init__(self, tracing: Tracing, stats: Stats | None = None) -> None:
        """Set where traces are made, and who counts for the page, if there is one."""
        self._tracing = tracing
        self._stats = stats
        self._metrics = Metrics()

    @contextmanager
    def call(
        self, protocol: str, headers: Mapping[str, str], attributes: Mapping[str, AttributeValue]
    ) -> Iterator[Call]:
        """Follow a call from here to the end of the block.

        Args:
            protocol: `http`, `grpc` or `handle`.
            headers: the caller's, or its metadata; `traceparent` and `tracestate` continue its trace.
            attributes: of the root span, known at the start.
        """
        started = time.perf_counter()
        trace = self._tracing.begin(
            headers.get("traceparent"), headers.get("tracestate"), {"ensemble.protocol": protocol, **attributes}
        )
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
            trace.end(call.attributes, call.fault)
            seconds = time.perf_counter() - started
            self._metrics.request(protocol, call.outcome, seconds)
            if self._stats is not None:
                self._stats.request(call.outcome, seconds)

    def batch(
        self,
        passages: Sequence[Passage],
        start_ns: int,
        end_ns: int,
        batch: Batch[Sequence[Answer]],
        *,
        of_ensemble: bool = True,
    ) -> None:
        """Follow a batch that left the queue at `start_ns` and was back at `end_ns`, nanoseconds since the epoch.

        What a member said of pixels of its own is not `of_ensemble`, and no answer of the ensemble's is counted then.
        """
        self._tracing.record(passages, start_ns, end_ns, batch.items)
        queue_wait_s = (start_ns - min(passage.queued_ns for passage in passages)) / 1e9
        self._metrics.batch(batch, queue_wait_s, of_ensemble)
        if self._stats is not None and of_ensemble:
            self._stats.batch(batch, queue_wait_s)

    def close(self) -> None:
        """Export what waits."""
        self._tracing.shutdown()

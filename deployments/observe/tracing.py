"""Traces: one per request, made at the ingress from what each node notes on the batch.

Nodes do not use OpenTelemetry. A node notes when it worked on a batch (`contract.item.Note`). Once the batch is
answered, the ingress makes a span of each note, with the service name of its node. So one place samples the whole
trace, exports and flushes, whichever processes the nodes run in.

Names: https://opentelemetry.io/docs/specs/semconv/; names that the conventions do not have begin with `ensemble.`.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deployments.contract import clock
from deployments.contract.item import PROCESS, AttributeValue, Item, Note
from deployments.observe.observer import ImageTrace, Trace

ROOT = "classify"
BATCH = "batch"
QUEUE = "queue"
SHUTDOWN_S = 0.5
SCOPE = InstrumentationScope("ensemble-serving")
PROPAGATOR = TraceContextTextMapPropagator()
OK = Status()
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# It would log every malformed `tracestate` with the client's text.
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


class Tracing:
    """Makes the spans of requests and batches for a span processor of the SDK."""

    def __init__(self, processor: SpanProcessor, services: Mapping[str, str]) -> None:
        """Set the processor of spans, and the service names by the nodes' operations."""
        self._services = services
        self._resources: dict[tuple[str, tuple[str, int]], Resource] = {}
        self._processor = processor
        self._ids = RandomIdGenerator()
        # The sampler is that of `OTEL_TRACES_SAMPLER`: it follows the caller's decision, and without one samples.
        provider = TracerProvider(resource=self._resource(ROOT, PROCESS), shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(SCOPE.name)

    def begin(
        self, trace_parent: str | None, trace_state: str | None, attributes: Mapping[str, AttributeValue]
    ) -> Trace:
        """Begin a request's trace, or continue the caller's by its W3C `traceparent` and `tracestate`, if any."""
        carrier = {"traceparent": trace_parent or "", "tracestate": trace_state or ""}
        caller = PROPAGATOR.extract(carrier, Context())
        span = self._tracer.start_span(ROOT, caller, kind=SpanKind.SERVER, attributes=attributes)
        context = span.get_span_context()
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        return Trace(parent, span if span.is_recording() else None)

    def record(self, image_traces: Sequence[ImageTrace], start_ns: int, end_ns: int, items: Sequence[Item]) -> None:
        """Make the spans of an answered batch: one of its own, linked to its requests, and one per request and step.

        It left the queue and was answered at these times, nanoseconds since the epoch.
        """
        # The images of one request share a set of spans.
        roots: dict[int, tuple[SpanContext, list[int]]] = {}
        for position, image_trace in enumerate(image_traces):
            if image_trace.trace.span is not None:
                root = image_trace.trace.span.get_span_context()
                roots.setdefault(root.span_id, (root, []))[1].append(position)
        if not roots:
            return
        size: dict[str, AttributeValue] = {"ensemble.batch.size": len(image_traces)}
        requests = [root for root, _ in roots.values()]
        own = self._emit(BATCH, requests[0], start_ns, end_ns, size, links=map(Link, requests))
        back = (Link(own),)
        for root, positions in roots.values():
            first = image_traces[positions[0]]
            self._emit(QUEUE, root, first.queued_ns, start_ns, {"ensemble.image.size": first.size}, links=back)
            self._emit_nodes(root, [items[position] for position in positions])

    def _emit_nodes(self, root: SpanContext, items: Sequence[Item]) -> None:
        """Make a span for each node that worked on one of a request's images."""
        notes: dict[Any, tuple[Note, tuple[str, str] | None]] = {}
        for item in items:
            for step in item.steps:
                _, failure = notes.get(step.note.key, (None, None))
                notes[step.note.key] = step.note, failure or step.failure
        size = next((item.image_size for item in items if item.image_size is not None), None)
        for number, (note, failure) in enumerate(notes.values()):
            attributes, status = note.attributes, OK
            if number == 0 and size is not None:
                attributes = {**attributes, "ensemble.image.width": size[0], "ensemble.image.height": size[1]}
            if failure is not None:
                attributes = {**attributes, "error.type": failure[0], "error.message": failure[1]}
                status = Status(StatusCode.ERROR, failure[1])
            own = int(note.span, 16) if note.span else None
            self._emit(
                note.node, root, note.start_ns, note.end_ns, attributes, status=status, where=note.process, span=own
            )

    def _emit(
        self,
        name: str,
        parent: SpanContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue],
        *,
        links: Iterable[Link] = (),
        status: Status = OK,
        where: tuple[str, int] = PROCESS,
        span: int | None = None,
    ) -> SpanContext:
        # Made as a whole, because it has ended: a tracer's span that is started and ended takes four times as long.
        context = SpanContext(parent.trace_id, span or self._ids.generate_span_id(), False, SAMPLED)
        made = ReadableSpan(
            name,
            context,
            parent,
            self._resource(name, where),
            attributes,
            links=tuple(links),
            status=status,
            start_time=clock.by_system_ns(start_ns),
            end_time=clock.by_system_ns(end_ns),
            instrumentation_scope=SCOPE,
        )
        self._processor.on_end(made)
        return context

    def _resource(self, name: str, where: tuple[str, int]) -> Resource:
        service = self._services.get(name, self._services[ROOT])
        if (service, where) not in self._resources:
            self._resources[service, where] = Resource.create(
                {
                    "service.name": service,
                    "service.namespace": "ensemble",
                    "service.instance.id": f"{where[0]}:{where[1]}",
                    "host.name": where[0],
                    "process.pid": where[1],
                }
            )
        return self._resources[service, where]

    def shutdown(self) -> None:
        """Export the spans that wait, and stop; without a collector, give up after a while."""
        last = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(SHUTDOWN_S)

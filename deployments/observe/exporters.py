"""Where spans go: what `OTEL_TRACES_EXPORTER` names.

`otlp` and `console` are the SDK's own, with their standard settings; `file` is for a machine without a collector.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from deployments.contract.errors import ConfigurationError

logger = logging.getLogger("ray.serve")

FOLDER = Path("traces")
MIB = 1024 * 1024
FILE_DELAY_MS = 200.0
MAX_FILE_BYTES = 16 * MIB
MAX_FILES = 8
# A request is about eight spans; the SDK's 2,048 would be a quarter of a second of them, and what exceeds it is lost.
QUEUED_SPANS = 32_768
# OTLP's span kinds, https://github.com/open-telemetry/opentelemetry-proto; the SDK's enumeration begins one lower.
OTLP_KIND_OFFSET = 1


def from_environment(environment: Mapping[str, str] = os.environ) -> SpanProcessor | None:
    """A batch processor for the exporter that `OTEL_TRACES_EXPORTER` names: `otlp`, `file`, `console` or `none`.

    Without the variable spans go to OTLP if an endpoint for it is set, else there is no tracing.

    Raises:
        ConfigurationError: there is no exporter of that name, or no OTLP protocol of the one that is set.
    """
    endpoint = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    name = environment.get("OTEL_TRACES_EXPORTER", "").strip() or ("otlp" if endpoint else "none")
    if name == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    make: dict[str, Callable[[], SpanExporter]] = {
        "otlp": lambda: _otlp(environment),
        "file": lambda: FileSpanExporter(FOLDER),
        "console": ConsoleSpanExporter,
    }
    if name not in make:
        raise ConfigurationError(f"OTEL_TRACES_EXPORTER: {name!r} is none of {[*make, 'none']}")
    # A file is there to be looked at now; what goes over the network waits for the SDK's 5 s.
    delay_ms = FILE_DELAY_MS if name == "file" and "OTEL_BSP_SCHEDULE_DELAY" not in environment else None
    queue = None if "OTEL_BSP_MAX_QUEUE_SIZE" in environment else QUEUED_SPANS
    return BatchSpanProcessor(Reporting(make[name](), name), queue, schedule_delay_millis=delay_ms)


def _otlp(environment: Mapping[str, str]) -> SpanExporter:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    # Imported only here: each brings its own client.
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http()
    raise ConfigurationError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is neither 'grpc' nor 'http/protobuf'")


class Reporting(SpanExporter):
    """Says once when spans can't be exported, and once when they can again; the SDK would say so every time."""

    def __init__(self, exporter: SpanExporter, name: str) -> None:
        """Set the exporter that does the work, and what to call it."""
        self._exporter = exporter
        self._name = name
        self._failing = False
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; what can't be exported is lost, and the service goes on."""
        try:
            result = self._exporter.export(spans)
        except Exception:
            logger.debug("exporting spans to %s", self._name, exc_info=True)
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("spans can't be exported to %s and are lost; the service goes on without", self._name)
        if self._failing and not failing:
            logger.warning("spans are exported to %s again", self._name)
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what the exporter holds back itself."""
        return self._exporter.force_flush(timeout_millis)


class FileSpanExporter(SpanExporter):
    """Writes OTLP JSON lines, one `TracesData` for each export, a file for each process.

    The file is bounded: when full it becomes `<name>.old.jsonl`, in the place of the one before. So is the folder: of
    the files that earlier processes left, a new one keeps the latest few.
    Source: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Make the folder, and set the size of a file at which a new one is begun."""
        folder.mkdir(parents=True, exist_ok=True)
        # Another replica that starts may be at it, too.
        with suppress(FileNotFoundError):
            for old in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)[: -MAX_FILES + 1]:
                old.unlink()
        self._path = (folder / f"{os.getpid()}.jsonl").resolve()
        self._max_bytes = max_bytes
        logger.info("traces are written to %s", self._path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append a line.

        Raises:
            OSError: the file can't be written.
        """
        line = traces_data(spans) + "\n"
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(line)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Every line is on disk already."""


def traces_data(spans: Sequence[ReadableSpan]) -> str:
    """Spans as OTLP's `TracesData` in JSON, grouped by resource.

    Written here and not by way of protobuf, whose generic JSON encoder takes ten times as long; attributes that several
    spans share are encoded once.
    """
    groups: dict[int, list[ReadableSpan]] = {}
    for span in spans:
        groups.setdefault(id(span.resource), []).append(span)
    encoded: dict[int, tuple[object, str]] = {}
    resources = ",".join(
        f'{{"resource":{{"attributes":{_attributes(group[0].resource.attributes)}}},"scopeSpans":[{{"scope":'
        f'{{"name":"ensemble-serving"}},"spans":[{",".join(_span(span, encoded) for span in group)}]}}]}}'
        for group in groups.values()
    )
    return f'{{"resourceSpans":[{resources}]}}'


def _span(span: ReadableSpan, encoded: dict[int, tuple[object, str]]) -> str:
    context = span.get_span_context()
    assert context is not None
    # `span.attributes` is a new view of the mapping each time. The mapping is kept with its JSON, so that no other can
    # have its id.
    shared = span._attributes
    if id(shared) not in encoded:
        encoded[id(shared)] = shared, _attributes(span.attributes)
    attributes = encoded[id(shared)][1]
    parent = "" if span.parent is None else f'"parentSpanId":"{span.parent.span_id:016x}",'
    links = ",".join(
        f'{{"traceId":"{link.context.trace_id:032x}","spanId":"{link.context.span_id:016x}"}}' for link in span.links
    )
    status = ""
    if span.status.status_code is not StatusCode.UNSET:
        described = {"code": span.status.status_code.value, "message": span.status.description or ""}
        status = f'"status":{json.dumps(described)},'
    return (
        f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}",{parent}'
        f'"name":{json.dumps(span.name)},"kind":{span.kind.value + OTLP_KIND_OFFSET},'
        f'"startTimeUnixNano":"{span.start_time}","endTimeUnixNano":"{span.end_time}",{status}'
        f'"links":[{links}],"attributes":{attributes}}}'
    )


def _attributes(attributes: Mapping[str, Any] | None) -> str:
    pairs = [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]
    return json.dumps(pairs, separators=(",", ":"))


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}

"""The exporters of spans that `OTEL_TRACES_EXPORTER` names.

`otlp` and `console` are the SDK's own, with their standard settings; `file` is for a machine without a collector.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, StatusCode

from deployments.contract.errors import ConfigurationError
from deployments.contract.settings import MIB

logger = logging.getLogger("ray.serve")

FOLDER = Path("traces")
FILE_DELAY_MS = 200.0
MAX_FILE_BYTES = 16 * MIB
MAX_FILES = 8
# A request has about eight spans; the SDK's default of 2,048 is soon full under load, and drops the rest.
QUEUED_SPANS = 32_768
# OTLP's span kinds, https://github.com/open-telemetry/opentelemetry-proto; the SDK's enumeration begins one lower.
OTLP_KIND_OFFSET = 1
SCOPE = {"name": "ensemble-serving"}


def from_environment(environment: Mapping[str, str] = os.environ) -> SpanProcessor | None:
    """Make a batch processor for the exporter that `OTEL_TRACES_EXPORTER` names; None for no tracing.

    The names are `otlp`, `file`, `console` and `none`; the default is `otlp` if an endpoint for it is set, else `none`.

    Raises:
        ConfigurationError: there is no such exporter, or no such OTLP protocol.
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
    # A file is read right after the request; over the network the SDK's delay of 5 s saves calls.
    delay_ms = FILE_DELAY_MS if name == "file" and "OTEL_BSP_SCHEDULE_DELAY" not in environment else None
    queue = None if "OTEL_BSP_MAX_QUEUE_SIZE" in environment else QUEUED_SPANS
    return BatchSpanProcessor(Reporting(make[name](), name), queue, schedule_delay_millis=delay_ms)


def _otlp(environment: Mapping[str, str]) -> SpanExporter:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    # Imported where they are used: each has a client library of its own.
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http()
    raise ConfigurationError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is neither 'grpc' nor 'http/protobuf'")


class Reporting(SpanExporter):
    """Logs once when spans can't be exported, and once when they can be again; the SDK would log every failure."""

    def __init__(self, exporter: SpanExporter, name: str) -> None:
        self._exporter = exporter
        self._name = name
        self._failing = False
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; spans that can't be exported are lost."""
        try:
            result = self._exporter.export(spans)
        except Exception:
            logger.debug("exporting spans to %s", self._name, exc_info=True)
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("spans can't be exported to %s and are lost; requests are answered all the same", self._name)
        if self._failing and not failing:
            logger.warning("spans are exported to %s again", self._name)
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter's buffered spans."""
        return self._exporter.force_flush(timeout_millis)


class FileSpanExporter(SpanExporter):
    """Writes OTLP JSON lines, one `TracesData` per export, to a file per process.

    The file is bounded: when it is full it replaces `<name>.old.jsonl`. So is the folder: of the files of earlier
    processes, the latest few are kept.
    Source: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Make the folder, and set the largest size of a file, bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        # Another replica that starts may remove them at the same time.
        with suppress(FileNotFoundError):
            ended = [path for path in folder.glob("*.jsonl") if not Path("/proc", path.name.partition(".")[0]).exists()]
            for old in sorted(ended, key=lambda path: path.stat().st_mtime)[: -MAX_FILES + 1]:
                old.unlink()
        self._path = (folder / f"{os.getpid()}.jsonl").resolve()
        self._max_bytes = max_bytes
        logger.info("traces are written to %s", self._path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append a line.

        Raises:
            OSError: the file can't be written.
        """
        line = traces_data(spans) + b"\n"
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab") as stream:
            stream.write(line)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing: every line is on disk."""


def traces_data(spans: Sequence[ReadableSpan]) -> bytes:
    """Encode spans as OTLP's `TracesData` in JSON, by resource; protobuf's encoder takes many times as long."""
    groups: dict[int, list[ReadableSpan]] = {}
    for span in spans:
        groups.setdefault(id(span.resource), []).append(span)
    resources = [
        {
            "resource": {"attributes": _attributes(group[0].resource.attributes)},
            "scopeSpans": [{"scope": SCOPE, "spans": [_span(span) for span in group]}],
        }
        for group in groups.values()
    ]
    return msgspec.json.encode({"resourceSpans": resources})


def _span(span: ReadableSpan) -> dict[str, Any]:
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    encoded = {
        **_ids(context),
        "name": span.name,
        "kind": span.kind.value + OTLP_KIND_OFFSET,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "links": [_ids(link.context) for link in span.links],
        "attributes": _attributes(span.attributes),
    }
    if parent is not None:
        encoded["parentSpanId"] = f"{parent.span_id:016x}"
    if status.status_code is not StatusCode.UNSET:
        encoded["status"] = {"code": status.status_code.value, "message": status.description or ""}
    return encoded


def _ids(context: SpanContext) -> dict[str, Any]:
    return {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


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

"""The exporter of spans that `OTEL_TRACES_EXPORTER=file` names, for a machine without a collector."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, StatusCode

from deployments.contract.settings import MIB

logger = logging.getLogger("ray.serve")

FOLDER = Path("traces")
MAX_FILE_BYTES = 16 * MIB
MAX_FILES = 8
# OTLP's span kinds, https://github.com/open-telemetry/opentelemetry-proto; the SDK's enumeration begins one lower.
OTLP_KIND_OFFSET = 1
SCOPE = {"name": "ensemble-serving"}


class FileSpanExporter(SpanExporter):
    """Writes OTLP JSON lines, one `TracesData` per export, to a file per process.

    The file is bounded: when it is full it replaces `<name>.old.jsonl`. So is the folder: of the files of earlier
    processes, the latest few are kept.
    Source: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
    """

    def __init__(self, folder: Path = FOLDER, max_bytes: int = MAX_FILE_BYTES) -> None:
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

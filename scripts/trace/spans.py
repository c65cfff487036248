"""Reads the traces that `OTEL_TRACES_EXPORTER=file` writes: OTLP JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError

ERROR = 2


@dataclass(frozen=True)
class Span:
    """One span; times are microseconds since the epoch, ids are hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    service: str
    start_us: int
    end_us: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    process: dict[str, Any]
    failed: bool

    @property
    def duration_us(self) -> int:
        """Microseconds."""
        return self.end_us - self.start_us

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "name": self.name,
            "service": self.service,
            "span_id": self.span_id,
            "parent_id": self.parent_id,
            "start_us": self.start_us,
            "end_us": self.end_us,
            "attributes": self.attributes,
            "links": [{"trace_id": trace_id, "span_id": span_id} for trace_id, span_id in self.links],
        }


@dataclass(frozen=True)
class Trace:
    """The spans of one trace, in order of their start."""

    trace_id: str
    spans: tuple[Span, ...]

    @property
    def start_us(self) -> int:
        """When its first span began."""
        return min(span.start_us for span in self.spans)

    @property
    def duration_us(self) -> int:
        """From the start of its first span to the end of its last."""
        return max(span.end_us for span in self.spans) - self.start_us

    def tree(self) -> Iterator[tuple[int, Span]]:
        """Every span with its depth, parents before their children; a span whose parent isn't here is a root."""
        here = {span.span_id for span in self.spans}

        def below(parent: str | None, depth: int) -> Iterator[tuple[int, Span]]:
            for span in self.spans:
                if (span.parent_id if span.parent_id in here else None) == parent:
                    yield depth, span
                    yield from below(span.span_id, depth + 1)

        return below(None, 0)

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {"trace_id": self.trace_id, "spans": [span.to_dict() for _, span in self.tree()]}


def read_traces(folder: Path) -> list[Trace]:
    """Every trace in a folder of OTLP JSON lines, the newest first.

    Raises:
        ScriptError: there is no trace, or a file holds something else.
    """
    spans: dict[str, list[Span]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
            if not line.endswith("\n"):
                continue  # it is being written
            try:
                for span in _spans(json.loads(line)):
                    spans.setdefault(span.trace_id, []).append(span)
            except (ValueError, KeyError, TypeError) as err:
                raise ScriptError(f"{path}, line {number}, is not OTLP JSON: {err!r}") from err
    if not spans:
        raise ScriptError(f"there are no traces in {folder}; serve with OTEL_TRACES_EXPORTER=file and send a request")
    return _newest_first(spans)


def parse_traces(data: dict[str, Any]) -> list[Trace]:
    """Every trace in OTLP's `TracesData` as JSON, the newest first.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    spans: dict[str, list[Span]] = {}
    for span in _spans(data):
        spans.setdefault(span.trace_id, []).append(span)
    return _newest_first(spans)


def _newest_first(spans: dict[str, list[Span]]) -> list[Trace]:
    traces = [
        Trace(trace_id, tuple(sorted(found, key=lambda span: (span.start_us, -span.end_us))))
        for trace_id, found in spans.items()
    ]
    return sorted(traces, key=lambda trace: trace.start_us, reverse=True)


def _spans(data: dict[str, Any]) -> Iterator[Span]:
    for resource in data["resourceSpans"]:
        process = _attributes(resource["resource"].get("attributes", []))
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Span(
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId") or None,
                    span["name"],
                    process.get("service.name", "unknown_service"),
                    int(span["startTimeUnixNano"]) // 1000,
                    int(span["endTimeUnixNano"]) // 1000,
                    _attributes(span.get("attributes", [])),
                    tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
                    process,
                    span.get("status", {}).get("code") == ERROR,
                )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    [(kind, content)] = value.items()
    if kind == "intValue":
        return int(content)
    return [_value(item) for item in content["values"]] if kind == "arrayValue" else content

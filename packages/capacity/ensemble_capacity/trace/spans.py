"""Reads the spans of traces from OTLP as JSON, as `OTEL_TRACES_EXPORTER=file` writes it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError

# OTLP's status code of a span that failed.
ERROR = 2


@dataclass(frozen=True)
class RecordedSpan:
    """One span; times are microseconds since the epoch, ids are hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    service: str
    start_us: int
    end_us: int
    attributes: dict[str, Any]
    links: list[dict[str, str]]
    process: dict[str, Any]
    failed: bool

    @property
    def duration_us(self) -> int:
        """Microseconds."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Trace:
    """The spans of one trace, in order of their start."""

    trace_id: str
    spans: tuple[RecordedSpan, ...]

    @property
    def start_us(self) -> int:
        """When its first span began."""
        return min(span.start_us for span in self.spans)

    @property
    def duration_us(self) -> int:
        """From the start of its first span to the end of its last."""
        return max(span.end_us for span in self.spans) - self.start_us

    def tree(self) -> Iterator[tuple[int, RecordedSpan]]:
        """Yield every span with its depth, parents before their children; a span whose parent isn't here is a root."""
        here = {span.span_id for span in self.spans}

        def below(parent: str | None, depth: int) -> Iterator[tuple[int, RecordedSpan]]:
            for span in self.spans:
                if (span.parent_id if span.parent_id in here else None) == parent:
                    yield depth, span
                    yield from below(span.span_id, depth + 1)

        return below(None, 0)


def read_traces(folder: Path) -> list[Trace]:
    """Read every trace in a folder of OTLP JSON lines, the newest first.

    Raises:
        ScriptError: there is no trace, or a file holds something else.
    """
    spans: list[RecordedSpan] = []
    for path in sorted(folder.glob("*.jsonl")):
        # The last line is empty, or it is being written. JSON may have other ends of lines in its text.
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
            try:
                spans += spans_in(json.loads(line))
            except (ValueError, KeyError, TypeError) as err:
                raise ScriptError(f"{path}, line {number}, is not OTLP JSON: {err!r}") from err
    if not spans:
        raise ScriptError(f"there are no traces in {folder}; serve with OTEL_TRACES_EXPORTER=file and send a request")
    return traces(spans)


def traces(spans: Iterable[RecordedSpan]) -> list[Trace]:
    """Group spans by trace, the newest trace first."""
    found: dict[str, list[RecordedSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.start_us, -span.end_us)):
        found.setdefault(span.trace_id, []).append(span)
    result = [Trace(trace_id, tuple(own)) for trace_id, own in found.items()]
    return sorted(result, key=lambda trace: trace.start_us, reverse=True)


def spans_in(data: dict[str, Any]) -> Iterator[RecordedSpan]:
    """Yield every span in OTLP's `TracesData` as JSON; raise KeyError, TypeError or ValueError for something else."""
    for resource in data["resourceSpans"]:
        process = _attributes(resource["resource"].get("attributes", []))
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            yield RecordedSpan(
                span["traceId"],
                span["spanId"],
                span.get("parentSpanId") or None,
                span["name"],
                process.get("service.name", "unknown_service"),
                int(span["startTimeUnixNano"]) // 1000,
                int(span["endTimeUnixNano"]) // 1000,
                _attributes(span.get("attributes", [])),
                [{"trace_id": link["traceId"], "span_id": link["spanId"]} for link in span.get("links", [])],
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

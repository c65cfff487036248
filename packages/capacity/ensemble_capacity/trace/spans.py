"""Reads the spans of traces from OTLP as JSON: what `OTEL_TRACES_EXPORTER=file` writes, and what Jaeger answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from scripts.errors import ScriptError

# OTLP's status code of a span that failed.
ERROR = 2
# Of Jaeger's API.
PATH = "/api/v3/traces"
TRACE_ID = re.compile("[0-9a-f]{32}")
# Without an id: how many of the latest traces are asked for, and of how long ago at most.
LATEST, SPAN = 200, timedelta(days=2)


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

    def to_dict(self) -> dict[str, Any]:
        """Return the span as `--json` prints it."""
        names = ("name", "service", "span_id", "parent_id", "start_us", "end_us", "attributes", "links")
        return {name: getattr(self, name) for name in names}


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

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as `--json` prints it."""
        return {"trace_id": self.trace_id, "spans": [span.to_dict() for _, span in self.tree()]}


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


def read_jaeger(url: str, trace_id: str | None = None) -> list[Trace]:
    """Read from a Jaeger the trace of a complete id, else the latest traces of the ingress; the newest first.

    Source of its API: https://www.jaegertracing.io/docs/latest/apis/

    Raises:
        ScriptError: there is no Jaeger, or it has none.
    """
    complete = trace_id is not None and TRACE_ID.fullmatch(trace_id)
    now = datetime.now(UTC)
    query = {
        "query.service_name": os.environ.get("OTEL_SERVICE_NAME") or "Ingress",
        "query.start_time_min": (now - SPAN).isoformat(),
        "query.start_time_max": (now + timedelta(minutes=1)).isoformat(),
        "query.num_traces": str(LATEST),
    }
    path = f"{PATH}/{trace_id}" if complete else PATH
    try:
        answer = httpx.get(f"{url.rstrip('/')}{path}", params={} if complete else query, timeout=30, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as err:
        raise ScriptError(f"there is no Jaeger at {url}: {err}; make jaeger says how to start one") from err
    try:
        found = [] if answer.status_code == httpx.codes.NOT_FOUND else traces(spans_in(answer.json()["result"]))
    except (ValueError, KeyError, TypeError) as err:
        raise ScriptError(f"what {url} answers, status {answer.status_code}, is not Jaeger's: {err!r}") from err
    if not found:
        raise ScriptError(f"{url} has no such trace; serve with OTEL_TRACES_EXPORTER=otlp and send a request")
    return found


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

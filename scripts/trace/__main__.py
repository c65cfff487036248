"""Draws a trace that `OTEL_TRACES_EXPORTER=file` wrote: as a waterfall in the terminal, as an SVG, for Jaeger.

python -m scripts.trace                                  # the newest
python -m scripts.trace --slowest --svg waterfall.svg
python -m scripts.trace 0af76519 --jaeger trace.json     # by the beginning of its id; for Jaeger's "Upload"
python -m scripts.trace --last 10 --json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from deployments.observe.exporters import FOLDER
from scripts.errors import ScriptError, told_in_one_line
from scripts.trace.spans import Span, Trace, read_traces
from scripts.trace.waterfall import draw, svg

WIDTH_WITHOUT_TERMINAL = 150


def choose(traces: list[Trace], beginning: str | None, slowest: bool, last: int) -> list[Trace]:
    """The traces asked for, the newest (or slowest) first.

    Raises:
        ScriptError: no trace's id begins so, or several do.
    """
    if beginning is not None:
        found = [trace for trace in traces if trace.trace_id.startswith(beginning.lower())]
        if len(found) != 1:
            raise ScriptError(f"{len(found)} traces have an id that begins with {beginning!r}")
        return found
    if slowest:
        traces = sorted(traces, key=lambda trace: trace.duration_us, reverse=True)
    return traces[:last]


def jaeger(traces: list[Trace]) -> dict[str, Any]:
    """Traces in the JSON of Jaeger's query service, which its user interface opens by "Upload".

    Source: https://github.com/jaegertracing/jaeger, `model/json`.
    """
    return {"data": [_jaeger_trace(trace) for trace in traces]}


def _jaeger_trace(trace: Trace) -> dict[str, Any]:
    processes: dict[str, dict[str, Any]] = {}
    names: dict[tuple[str, Any], str] = {}
    spans = []
    for span in trace.spans:
        key = span.service, span.process.get("service.instance.id")
        if key not in names:
            names[key] = f"p{len(names) + 1}"
            processes[names[key]] = {"serviceName": span.service, "tags": _tags(span.process)}
        spans.append(_jaeger_span(span, names[key]))
    return {"traceID": trace.trace_id, "spans": spans, "processes": processes}


def _jaeger_span(span: Span, process: str) -> dict[str, Any]:
    references = [(span.trace_id, span.parent_id, "CHILD_OF")] if span.parent_id else []
    references += [(trace_id, span_id, "FOLLOWS_FROM") for trace_id, span_id in span.links]
    tags = {**span.attributes, **({"error": True} if span.failed else {})}
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [
            {"refType": kind, "traceID": trace_id, "spanID": span_id} for trace_id, span_id, kind in references
        ],
        "startTime": span.start_us,
        "duration": span.duration_us,
        "tags": _tags(tags),
        "logs": [],
        "processID": process,
    }


def _tags(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {bool: "bool", int: "int64", float: "float64"}
    return [{"key": key, "type": kinds.get(type(value), "string"), "value": value} for key, value in attributes.items()]


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", metavar="TRACE_ID", help="the beginning of its id; default: the newest")
    parser.add_argument("--slowest", action="store_true", help="the slowest instead of the newest")
    parser.add_argument("--last", type=int, default=1, metavar="N", help="so many, the newest (or slowest) first")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the traces are (default: traces)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of drawing")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the first one's waterfall as an SVG")
    parser.add_argument("--jaeger", type=Path, metavar="FILE", help='write a file for Jaeger\'s "Upload"')
    args = parser.parse_args()
    if args.last < 1:
        parser.error("--last must be at least 1")
    with told_in_one_line():
        traces = choose(read_traces(args.folder), args.trace, args.slowest, args.last)
        if args.svg is not None:
            args.svg.write_text(svg(traces[0]), encoding="utf-8")
        if args.jaeger is not None:
            args.jaeger.write_text(json.dumps(jaeger(traces)), encoding="utf-8")
        if args.json:
            json.dump([trace.to_dict() for trace in traces], sys.stdout)
            print()
            return
        console = Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
        for trace in traces:
            draw(trace, console)
            console.print()


if __name__ == "__main__":
    main()

"""Draws a trace that `OTEL_TRACES_EXPORTER=file` wrote, or that Jaeger holds: in the terminal, or as an SVG.

ensemble trace                                  # the newest
ensemble trace --slowest --svg waterfall.svg
ensemble trace 0af76519                         # by the beginning of its id
ensemble trace --last 10 --json
ensemble trace --jaeger http://127.0.0.1:16686  # what Jaeger holds
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deployments.observe.exporters import FOLDER
from ensemble_capacity.trace.spans import Trace, read_jaeger, read_traces
from ensemble_capacity.trace.waterfall import draw, svg
from ensemble_models.results import console
from scripts.errors import ScriptError, errors_in_one_line, positive
from scripts.flags import described


def choose(traces: list[Trace], beginning: str | None, slowest: bool, last: int) -> list[Trace]:
    """Choose the traces that the user asks for, the newest (or slowest) first.

    Raises:
        ScriptError: no trace's id begins so, or several do.
    """
    if beginning is not None:
        found = [trace for trace in traces if trace.trace_id.startswith(beginning)]
        if len(found) != 1:
            raise ScriptError(f"{len(found)} traces have an id that begins with {beginning!r}")
        return found
    if slowest:
        traces = sorted(traces, key=lambda trace: trace.duration_us, reverse=True)
    return traces[:last]


def main() -> None:
    """Parse the command line and draw."""
    parser = described(__doc__)
    parser.add_argument(
        "trace",
        nargs="?",
        type=str.lower,
        metavar="TRACE_ID",
        help="the beginning of a trace's id; default: the newest trace",
    )
    parser.add_argument("--slowest", action="store_true", help="show the slowest traces instead of the newest")
    parser.add_argument("--last", type=positive, metavar="N", help="number of traces to show; default: 1")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--folder", type=Path, default=FOLDER, help="folder of the traces (default: traces)")
    where.add_argument("--jaeger", metavar="URL", help="read traces from this Jaeger instead of a folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of drawing")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the first trace's waterfall as an SVG")
    args = parser.parse_args()
    if args.trace is not None and (args.slowest or args.last):
        parser.error("--slowest and --last choose among all traces; leave out TRACE_ID, or them")
    with errors_in_one_line():
        found = read_traces(args.folder) if args.jaeger is None else read_jaeger(args.jaeger, args.trace)
        traces = choose(found, args.trace, args.slowest, args.last or 1)
        if args.svg is not None:
            args.svg.write_text(svg(traces[0]), encoding="utf-8")
        if args.json:
            json.dump([trace.to_dict() for trace in traces], sys.stdout)
            print()
            return
        out = console()
        for trace in traces:
            draw(trace, out)
            out.print()


if __name__ == "__main__":
    main()

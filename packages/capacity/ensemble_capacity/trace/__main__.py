"""Draws a trace as a waterfall: in the terminal, or as an SVG."""

import io
import re
from types import SimpleNamespace
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ensemble_capacity.trace.file import FOLDER
from ensemble_capacity.trace.spans import RecordedSpan, Trace, read_traces
from ensemble_models.options import FILE, POSITIVE, Command, OutputFile, console, option
from scripts.errors import ScriptError

PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b")
FAILED = "#d00000"
BAR_CELLS = 60
# Attributes that are printed beside the bar, and what each is called there.
NOTED = {
    "ensemble.batch.size": "batch of",
    "ensemble.model.version": "version",
    "ensemble.queue_wait_ms": "queued ms",
    "error.type": "error",
}
SVG_CHARACTERS = 160
# What Rich's pictures fetch from another website.
FONTS = re.compile(r"@font-face {.*?}", re.DOTALL)


def draw(trace: Trace, console: Console) -> None:
    """Print a trace: a line for each span, its bar on the time axis of the whole trace."""
    colours = _colours(trace)
    table = Table(
        title=f"{trace.trace_id}   {trace.duration_us / 1000:.2f} ms", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("span", "service", f"0 to {trace.duration_us / 1000:.2f} ms"):
        table.add_column(heading, no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for depth, span in trace.tree():
        before = round(_share(trace, span.start_us) * BAR_CELLS)
        cells = max(1, round(_share(trace, span.end_us) * BAR_CELLS) - before)
        bar = Text(" " * min(before, BAR_CELLS - 1)) + Text("━" * cells, colours[span.service])
        name = Text("  " * depth + span.name, FAILED if span.failed else "")
        table.add_row(name, span.service, bar, f"{span.duration_us / 1000:.2f}", _notes(span))
    console.print(table)


def drawn(trace: Trace) -> str:
    """Draw the waterfall as an SVG document."""
    paper = Console(record=True, file=io.StringIO(), width=SVG_CHARACTERS)
    draw(trace, paper)
    return FONTS.sub("", paper.export_svg(title=f"A request of {trace.duration_us / 1000:.2f} ms, span by span"))


def _colours(trace: Trace) -> dict[str, str]:
    services = list(dict.fromkeys(span.service for _, span in trace.tree()))
    return {service: PALETTE[i % len(PALETTE)] for i, service in enumerate(services)}


def _share(trace: Trace, time_us: int) -> float:
    return min(1.0, max(0.0, (time_us - trace.start_us) / max(trace.duration_us, 1)))


def _notes(span: RecordedSpan) -> str:
    values = {name: span.attributes[key] for key, name in NOTED.items() if key in span.attributes}
    return ", ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


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


@click.command("trace", cls=Command)
@click.argument("trace_id", required=False, type=str.lower)
@option("--slowest", is_flag=True, help="Show the slowest traces instead of the newest.")
@option("--last", type=POSITIVE, metavar="N", help="Number of traces to show; default: 1.")
@option("--folder", type=FILE, default=FOLDER, help="Folder of the traces.")
@option("--json", "as_json", is_flag=True, help="Print JSON instead of drawing.")
@option("--svg", type=OutputFile(), help="Write the first trace's waterfall as an SVG.")
def main(**given: Any) -> None:
    """Draw a trace that `OTEL_TRACES_EXPORTER=file` wrote: in the terminal, or as an SVG.

    ensemble trace                                  # the newest
    ensemble trace --slowest --svg waterfall.svg
    ensemble trace 0af76519                         # by the beginning of its id
    ensemble trace --last 10 --json
    """
    args = SimpleNamespace(**given)
    if args.trace_id is not None and (args.slowest or args.last):
        raise click.UsageError("--slowest and --last choose among all traces; leave out TRACE_ID, or them")
    traces = choose(read_traces(args.folder), args.trace_id, args.slowest, args.last or 1)
    if args.svg is not None:
        args.svg.write_text(drawn(traces[0]), encoding="utf-8")
    if args.as_json:
        print(msgspec.json.encode(traces).decode())
        return
    out = console()
    for trace in traces:
        draw(trace, out)
        out.print()


if __name__ == "__main__":
    main()

"""A trace as a waterfall: in the terminal and as an SVG."""

from __future__ import annotations

import io
import re

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ensemble_capacity.trace.spans import Span, Trace

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


def svg(trace: Trace) -> str:
    """Draw the waterfall as an SVG document."""
    paper = Console(record=True, file=io.StringIO(), width=SVG_CHARACTERS)
    draw(trace, paper)
    return FONTS.sub("", paper.export_svg(title=f"A request of {trace.duration_us / 1000:.2f} ms, span by span"))


def _colours(trace: Trace) -> dict[str, str]:
    services = list(dict.fromkeys(span.service for _, span in trace.tree()))
    return {service: PALETTE[i % len(PALETTE)] for i, service in enumerate(services)}


def _share(trace: Trace, time_us: int) -> float:
    return min(1.0, max(0.0, (time_us - trace.start_us) / max(trace.duration_us, 1)))


def _notes(span: Span) -> str:
    values = {name: span.attributes[key] for key, name in NOTED.items() if key in span.attributes}
    return ", ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )

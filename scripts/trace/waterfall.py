"""A trace as a waterfall: in the terminal and as an SVG."""

from __future__ import annotations

from html import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.trace.spans import Span, Trace

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
LABEL_PX, BAR_PX, ROW_PX, HEAD_PX = 250, 560, 24, 44
# Light or dark, as its reader's system is.
STYLE = (
    "text{fill:#1f2328}.soft{fill:#59636e}line{stroke:#d1d9e0}@media(prefers-color-scheme:dark)"
    "{text{fill:#e6edf3}.soft{fill:#9198a1}line{stroke:#3d444d}}"
)
# Of a character of 12 pixels, on average.
CHARACTER_PX = 6.6


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
    colours = _colours(trace)
    rows = list(trace.tree())
    notes = [f"{span.duration_us / 1000:.2f} ms {_notes(span)}" for _, span in rows]
    width = LABEL_PX + BAR_PX + 24 + round(CHARACTER_PX * max(map(len, notes)))
    height = HEAD_PX + ROW_PX * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>The spans of trace {trace.trace_id}</title><style>{STYLE}</style>",
        f'<text x="8" y="18" font-weight="bold">{trace.trace_id}</text>',
    ]
    for tick in range(5):
        x = LABEL_PX + BAR_PX * tick / 4
        parts.append(f'<line x1="{x}" y1="{HEAD_PX - 8}" x2="{x}" y2="{height - 8}"/>')
        label = f"{trace.duration_us * tick / 4000:.1f} ms"
        parts.append(f'<text x="{x}" y="{HEAD_PX - 12}" text-anchor="middle" class="soft">{label}</text>')
    for row, (depth, span) in enumerate(rows):
        y = HEAD_PX + ROW_PX * row
        x = LABEL_PX + BAR_PX * _share(trace, span.start_us)
        length = max(1.5, BAR_PX * span.duration_us / max(trace.duration_us, 1))
        fill = FAILED if span.failed else colours[span.service]
        parts += [
            f'<text x="{8 + 14 * depth}" y="{y + 15}">{escape(span.name)}'
            f'<tspan class="soft"> {escape(span.service)}</tspan></text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="{ROW_PX - 8}" rx="2" fill="{fill}">'
            f"<title>{escape(str(span.attributes))}</title></rect>",
            f'<text x="{LABEL_PX + BAR_PX + 8}" y="{y + 15}">{escape(notes[row])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


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

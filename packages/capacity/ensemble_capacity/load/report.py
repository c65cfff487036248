"""The result of a load for people and programs: a table, sentences, JSON, and a page with charts."""

from __future__ import annotations

import io
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

import msgspec

from ensemble_capacity.load.measure import Row
from ensemble_models.results import Table

HEADINGS = (
    *("load", "requests/s", "images/s", "p50, ms", "p90, ms", "p99, ms"),
    *("failed", "server CPU, ms", "client CPU, ms", "windows", "client"),
)
NOT_MEASURED = "not measured here"
STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } .wide { overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; } tr.found { font-weight: bold; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; }
summary { cursor: pointer; font-size: 1.2rem; margin-top: 1rem; } h3 { margin-bottom: .2rem; } .none { color: #888; }"""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        rows: the measured rows, in order.
        slo_ms: the objective: what the percentile of the latency may be; None without one.
        found: the position of the row that the search found; None without one.
    """

    url: str
    protocol: str
    rows: list[Row]
    slo_ms: float | None = None
    percentile: float = 99.0
    found: int | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    machine: str = field(default_factory=lambda: f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}")

    @property
    def shown(self) -> Row:
        """The row that the search found, or else the last one."""
        return self.rows[-1] if self.found is None else self.rows[self.found]

    def table(self) -> Table:
        """Make a line of each row."""
        title = None if self.slo_ms is None else f"p{self.percentile:g} is at most {self.slo_ms:g} ms"
        return Table(HEADINGS, [cells(row) for row in self.rows], words=(0, 9, 10), title=title)

    def json(self) -> str:
        """Write everything as JSON; a value that is no number is null."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=float), indent=1).decode() + "\n"

    def remarks(self) -> Iterator[str]:
        """Make the sentences below the table."""
        for row in self.rows:
            if row.failed:
                counts = ", ".join(f"{count:,} {status}" for status, count in row.outcomes.items())
                yield f"{row.name}: {counts}; the first failure: {row.first_error}"
            if not row.requests:
                yield f"{row.name}: no request that was due in the time that was measured was answered"
            right = [] if row.top1 is None else [f"{row.top1:.2f} % of the answers are right"]
            if right or row.degraded or row.shed:
                lacking = f"{row.degraded:.2%} lack a member"
                right += [f"{lacking}, {row.shed:.2%} were made by fewer members because of the load"]
                yield f"{row.name}: {'; '.join(right)}"
        last = self.shown
        energy = _energy(last)
        yield f"energy at {last.name}: {f'{energy}, the whole machine' + chr(39) + 's' if energy else NOT_MEASURED}"
        if self.slo_ms is not None:
            objective = self.table().title
            found = f"{last.value:.1f} requests/s is the highest rate found at which {objective}"
            yield f"no rate was found at which {objective}" if self.found is None else found


def _energy(row: Row) -> str:
    images = row.images_per_s * row.server.seconds
    return "" if row.server.joules is None or not images else f"{row.server.joules / images:.3f} J per image"


def number(value: float, digits: int) -> str:
    """Write a number; empty if it is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def cells(row: Row) -> list[str]:
    """Make a row's texts."""
    used = sum(row.server.cpu_s.values())
    server = f"{1000 * row.per_request(used):.2f}" if row.server.cpu_s else ""
    stable = {None: "", True: "agree", False: "unstable"}[row.stable]
    percentiles = [number(row.percentiles_ms[name], 2) for name in ("p50", "p90", "p99")]
    rates = [f"{row.requests_per_s:,.1f}", f"{row.images_per_s:,.1f}"]
    return [row.name, *rates, *percentiles, f"{row.failed:,}", server, f"{row.client_cpu_ms:.3f}", stable, row.client]


def page(report: Report) -> str:
    """Make one HTML page, which needs neither a network nor a script."""
    rows = sorted((row for row in report.rows if row.requests), key=lambda row: row.requests_per_s)
    series = {name: [(row.requests_per_s, row.percentiles_ms[name]) for row in rows] for name in ("p50", "p90", "p99")}
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(
        f"<tr{' class=found' if number == report.found else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row))
        + "</tr>"
        for number, row in enumerate(report.rows)
    )
    sections = [
        f"<h1>{escape(report.url)}</h1>",
        f"<p>{escape(report.protocol)}, {escape(report.date)}, sent from {escape(report.machine)}</p>",
        f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>',
        *(f"<p>{escape(remark)}</p>" for remark in report.remarks()),
        f"<h2>Latency against rate</h2>{lines(series, 'requests/s', 'ms', report.slo_ms, log=True)}",
        f"<h2>Each load</h2><p>Shown is {escape(report.shown.name)}; the others open.</p>",
        *(_details(report, row) for row in report.rows),
    ]
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = f"<title>Load on {escape(report.url)}</title><style>{STYLE}</style>"
    content = "".join(sections)
    return f'<!doctype html><html lang="en"><head>{meta}{title}</head><body>{content}</body></html>\n'


def _details(report: Report, row: Row) -> str:
    seconds, figures = row.timeline, row.server
    percentiles = {name: [(each["second"], each[f"{name}_ms"]) for each in seconds] for name in ("p50", "p90", "p99")}
    codes = Counter(code for each in seconds for code in each["outcomes"])
    by_code = {code: [(each["second"], each["outcomes"].get(code, 0)) for each in seconds] for code in codes}
    begin = figures.queue[0][0] if figures.queue else 0.0
    queue = {
        "waiting": [(at - begin, float(waiting)) for at, waiting, _ in figures.queue],
        "in flight": [(at - begin, float(in_flight)) for at, _, in_flight in figures.queue],
    }
    cpu = {name: 1000 * row.per_request(used) for name, used in figures.cpu_s.items()}
    charts = {
        "Latency over time, by when requests were due": lines(percentiles, "s", "ms", report.slo_ms),
        "Outcomes by code": lines(by_code, "s", "requests/s"),
        "The server's queue, in images": lines(queue, "s", "images"),
        "Nodes: where the time went, by the responses' Server-Timing": bars(row.stages_ms, "ms"),
        "An inference, by the server's statistics": bars(figures.parts_us, "µs"),
        "Batch sizes": bars({f"{size} images": count for size, count in figures.batches.items()}, "batches"),
        "CPU per request, by process": bars({**cpu, "the load generator": row.client_cpu_ms}, "ms"),
        "Memory, by process": bars(figures.memory_mb, "MB"),
        "Energy": f"<p>{_energy(row) or NOT_MEASURED}</p>",
    }
    body = "".join(f"<h3>{escape(title)}</h3>{chart}" for title, chart in charts.items())
    is_open = " open" if row is report.shown else ""
    return f"<details{is_open}><summary>{escape(row.name)}</summary>{body}</details>"


def lines(series: Mapping[str, Points], x: str, y: str, limit: float | None = None, *, log: bool = False) -> str:
    """Draw lines by name as SVG; `limit` is a dashed line across."""
    drawn = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}

    def draw(axes: Any) -> None:
        for name, points in drawn.items():
            axes.plot([p[0] for p in points], [p[1] for p in points], "o-", markersize=3, linewidth=1.2, label=name)
        if limit is not None:
            axes.axhline(limit, color="C3", linestyle="--", linewidth=1, label="limit")
        axes.set(xlabel=x, ylabel=y, yscale="log" if log else "linear")
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

    return _svg(draw, 2.8) if any(drawn.values()) else _nothing()


def bars(values: Mapping[str, float], unit: str) -> str:
    """Draw a bar for each value above zero as SVG, with its name and its number."""
    shown = {name: value for name, value in values.items() if math.isfinite(value) and value > 0}

    def draw(axes: Any) -> None:
        drawn = axes.barh(range(len(shown)), list(shown.values()))
        axes.bar_label(drawn, [f"{value:,.4g} {unit}" for value in shown.values()], padding=3)
        axes.set_yticks(range(len(shown)), list(shown))
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.xaxis.set_visible(False)

    return _svg(draw, 0.4 + 0.25 * len(shown)) if shown else _nothing()


def _nothing() -> str:
    return f'<p class="none">{NOT_MEASURED}</p>'


def _svg(draw: Callable[[Any], None], height: float) -> str:
    """Draw a chart of 7 inches by `height`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure, text = Figure(figsize=(7, height), layout="constrained"), io.StringIO()
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    # Names of processes are no formulas: a dollar sign is one.
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        draw(axes)
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]

"""The result as one HTML page, which needs neither a network nor a script."""

from __future__ import annotations

from collections import Counter
from html import escape

from ensemble_capacity.load.report.charts import bars, lines
from ensemble_capacity.load.report.report import HEADINGS, NOT_MEASURED, Report, cells, remarks
from ensemble_capacity.load.row import Row

STYLE = """:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } .wide { overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; } tr.found { font-weight: bold; }
svg { width: 100%; max-width: 44rem; display: block; } svg text { font-size: 12px; fill: currentColor; }
.grid { stroke: #8884; } .limit { stroke: #c33; stroke-dasharray: 6 4; }
summary { cursor: pointer; font-size: 1.2rem; margin-top: 1rem; } h3 { margin-bottom: .2rem; } .none { color: #888; }"""


def page(report: Report) -> str:
    """The page of a report."""
    shown = report.rows[-1] if report.found is None else report.rows[report.found]
    chosen = escape(shown.name)
    sections = [
        f"<h1>{escape(report.url)}</h1>",
        f"<p>{escape(report.protocol)}, {escape(report.date)}, sent from {escape(report.machine)}</p>",
        _table(report),
        *(f"<p>{escape(remark)}</p>" for remark in remarks(report)),
        "<h2>Latency against rate</h2>",
        _against_rate(report),
        f"<h2>Each load</h2><p>Shown is {chosen}; the others open.</p>",
        *(_details(report, row, row is shown) for row in report.rows),
    ]
    title = f"<title>Load on {escape(report.url)}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}<style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}</body></html>\n'


def _table(report: Report) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(
        ('<tr class="found">' if number == report.found else "<tr>")
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row))
        + "</tr>"
        for number, row in enumerate(report.rows)
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _against_rate(report: Report) -> str:
    rows = sorted((row for row in report.rows if row.requests), key=lambda row: row.requests_per_s)
    series = {name: [(row.requests_per_s, row.percentiles_ms[name]) for row in rows] for name in ("p50", "p90", "p99")}
    return _shown(lines(series, "requests/s", "ms", report.slo_ms, log=True))


def _details(report: Report, row: Row, is_open: bool) -> str:
    seconds = row.timeline
    percentiles = {name: [(each["second"], each[f"{name}_ms"]) for each in seconds] for name in ("p50", "p90", "p99")}
    codes = Counter(code for each in seconds for code in each["outcomes"])
    by_code = {code: [(each["second"], each["outcomes"].get(code, 0)) for each in seconds] for code in codes}
    begin = row.server.queue[0][0] if row.server.queue else 0.0
    queue = {
        "waiting": [(at - begin, waiting) for at, waiting, _ in row.server.queue],
        "in flight": [(at - begin, in_flight) for at, _, in_flight in row.server.queue],
    }
    cpu = {name: 1000 * row.per_request(used) for name, used in row.server.cpu_s.items()}
    cpu["the load generator"] = row.client_cpu_ms
    images = row.images_per_s * row.server.seconds
    joules = row.server.joules
    cost = report.cost(row)
    charts = {
        "Latency over time, by when requests were due": lines(percentiles, "s", "ms", report.slo_ms),
        "Outcomes by code": lines(by_code, "s", "requests/s"),
        "The server's queue, in images": lines(queue, "s", "images"),
        "Nodes: where the time went, by the responses' Server-Timing": bars(row.stages_ms, "ms"),
        "An inference, by the server's statistics": bars(row.server.parts_us, "µs"),
        "Batch sizes": bars({f"{size} images": count for size, count in row.server.batches.items()}, "batches"),
        "CPU per request, by process": bars({name: used for name, used in cpu.items() if used > 0}, "ms"),
        "Memory, by process": bars(row.server.memory_mb, "MB"),
        "Energy": "" if joules is None or not images else f"<p>{joules / images:.3f} J per image</p>",
        "Cost": "<p>give --price-per-hour</p>" if cost is None else f"<p>{cost:.2f} per million images</p>",
    }
    body = "".join(f"<h3>{escape(title)}</h3>{_shown(chart)}" for title, chart in charts.items())
    return f"<details{' open' if is_open else ''}><summary>{escape(row.name)}</summary>{body}</details>"


def _shown(chart: str) -> str:
    return chart or f'<p class="none">{NOT_MEASURED}</p>'

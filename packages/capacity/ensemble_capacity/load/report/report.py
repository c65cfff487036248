"""The result of a command: its rows, and what they were measured on."""

from __future__ import annotations

import csv
import io
import math
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import msgspec

from ensemble_capacity.load.row import Row
from scripts.results import Table

HEADINGS = (
    "load",
    "requests/s",
    "images/s",
    "p50, ms",
    "p90, ms",
    "p99, ms",
    "failed",
    "server CPU, ms",
    "client CPU, ms",
    "windows",
    "client",
)
NOT_MEASURED = "not measured here"
# perf_analyzer's own, https://github.com/triton-inference-server/perf_analyzer/blob/main/docs/measurements_metrics.md
COLUMNS = (
    "Inferences/Second",
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
    "p50 latency",
    "p90 latency",
    "p95 latency",
    "p99 latency",
)


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        rows: what was measured, in order.
        slo_ms: the objective: what the percentile of the latency may be; None without one.
        found: the position of the row that the search found; None without one.
        price_per_hour: of the machine; None if it was not given.
    """

    url: str
    protocol: str
    rows: list[Row]
    slo_ms: float | None = None
    percentile: float = 99.0
    found: int | None = None
    price_per_hour: float | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    machine: str = field(default_factory=lambda: f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}")

    @property
    def objective(self) -> str:
        """The objective in words; empty without one."""
        return "" if self.slo_ms is None else f"p{self.percentile:g} is at most {self.slo_ms:g} ms"

    def cost(self, row: Row) -> float | None:
        """What a million images cost at a row's rate, in the unit of the price."""
        if self.price_per_hour is None or not row.images_per_s:
            return None
        return self.price_per_hour / 3600 / row.images_per_s * 1e6

    def table(self) -> Table:
        """A line for each row."""
        return Table(HEADINGS, [cells(row) for row in self.rows], words=(0, 9, 10), title=self.objective or None)

    def json(self) -> str:
        """Everything, as JSON; what is no number is null."""
        rows = [{**asdict(row), "cost_per_million_images": self.cost(row)} for row in self.rows]
        content = {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "rows": rows}
        return msgspec.json.format(msgspec.json.encode(content, enc_hook=float), indent=1).decode() + "\n"

    def csv(self) -> str:
        """The rows as perf_analyzer writes them, microseconds: of a search, those of given rates.

        Sending and receiving count as the network's; where the server reports no statistics, their cells are empty.
        """
        is_closed = all(row.mode == "concurrency" for row in self.rows)
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["Concurrency" if is_closed else "Request Rate", *COLUMNS])
        for row in sorted(self.rows, key=lambda row: row.images_per_s):
            if is_closed or row.mode != "concurrency":
                writer.writerow([f"{row.value:g}", *_measured(row)])
        return stream.getvalue()


def _measured(row: Row) -> list[str]:
    parts = row.server.parts_us
    network = 1000 * row.mean_ms - sum(parts.values())
    named = ("queue", "compute_input", "compute_infer", "compute_output")
    server = [f"{parts[name]:.0f}" if name in parts else "" for name in named]
    percentiles = [number(1000 * each, 0) for each in row.percentiles_ms.values()]
    return [f"{row.images_per_s:.2f}", "0", number(network, 0), *server, "0", *percentiles]


def number(value: float, digits: int) -> str:
    """A number's text; empty if it is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def cells(row: Row) -> list[str]:
    """A row's texts."""
    used = sum(row.server.cpu_s.values())
    server = f"{1000 * row.per_request(used):.2f}" if row.server.cpu_s else ""
    stable = {None: "", True: "agree", False: "unstable"}[row.stable]
    percentiles = [number(row.percentiles_ms[name], 2) for name in ("p50", "p90", "p99")]
    rates = [f"{row.requests_per_s:,.1f}", f"{row.images_per_s:,.1f}"]
    return [row.name, *rates, *percentiles, f"{row.failed:,}", server, f"{row.client_cpu_ms:.3f}", stable, row.client]


def remarks(report: Report) -> list[str]:
    """The sentences below the table."""
    lines = []
    for row in report.rows:
        if row.failed:
            counts = ", ".join(f"{count:,} {status}" for status, count in row.outcomes.items())
            lines.append(f"{row.name}: {counts}; the first failure: {row.first_error}")
        if not row.requests:
            lines.append(f"{row.name}: no request that was due in the time that was measured was answered")
        told = [] if row.top1 is None else [f"{row.top1:.2f} % of the answers are right"]
        if told or row.degraded or row.shed:
            told += [f"{row.degraded:.2%} lack a member, {row.shed:.2%} were made by fewer members because of the load"]
            lines.append(f"{row.name}: {'; '.join(told)}")
    last = report.rows[-1] if report.found is None else report.rows[report.found]
    joules = last.server.joules
    images = last.images_per_s * last.server.seconds
    energy = NOT_MEASURED if joules is None or not images else f"{joules / images:.3f} J per image, the whole machine's"
    lines.append(f"energy at {last.name}: {energy}")
    if (cost := report.cost(last)) is not None:
        lines.append(f"cost at {last.name}: {cost:.2f} per million images")
    if report.objective and report.found is None:
        lines.append(f"no rate was found at which {report.objective}")
    elif report.found is not None:
        lines.append(f"{last.value:.1f} requests/s is the highest rate found at which {report.objective}")
    return lines

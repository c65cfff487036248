"""The result of a load for people and programs: a table, sentences and JSON."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ensemble_capacity.load.measure import Row
from ensemble_models.options import Table

HEADINGS = (
    *("load", "requests/s", "images/s", "p50, ms", "p90, ms", "p99, ms"),
    *("failed", "server CPU, ms", "client CPU, ms", "thirds", "client"),
)


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
        if self.slo_ms is not None:
            objective = self.table().title
            found = f"{self.shown.value:.1f} requests/s is the highest rate found at which {objective}"
            yield f"no rate was found at which {objective}" if self.found is None else found


def number(value: float, digits: int) -> str:
    """Write a number; empty if it is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def cells(row: Row) -> list[str]:
    """Make a row's texts."""
    used = sum(row.server.cpu_s.values())
    server = f"{1000 * row.per_request(used):.2f}" if row.server.cpu_s else ""
    stable = "agree" if row.stable else "unstable"
    percentiles = [number(row.percentiles_ms[name], 2) for name in ("p50", "p90", "p99")]
    rates = [f"{row.requests_per_s:,.1f}", f"{row.images_per_s:,.1f}"]
    return [row.name, *rates, *percentiles, f"{row.failed:,}", server, f"{row.client_cpu_ms:.3f}", stable, row.client]

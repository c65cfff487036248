"""Searches the highest rate at which a server holds an objective on its latency."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.load import Closed, Mode
from ensemble_capacity.load.row import Row

# What a server answers so many clients at once is about the most that it answers at all.
MOST_CLIENTS = 32
# The rate is found to this share.
CLOSE = 0.05
# Rates that are tried, at most; and how often the one that was found must hold again.
TRIES = 8
# A rate that does not hold again is lowered by this share.
STEP = 0.05


@dataclass(frozen=True)
class Objective:
    """An objective: a percentile of the latency that is not exceeded. A request that fails is infinitely late."""

    slo_ms: float
    percentile: float

    def holds(self, row: Row) -> bool:
        """Whether a row holds it."""
        return row.slo_percentile_ms is not None and row.slo_percentile_ms <= self.slo_ms


def search(objective: Objective, arrivals: Arrivals, run: Callable[[Mode], Row]) -> Iterator[tuple[Row, bool]]:
    """Find the highest rate that holds, by halves, and confirm it by one more run.

    It is below what a closed loop reaches, unless that holds the objective itself.

    Yields:
        Each row that was measured, and whether it is the result: the last one, unless no rate holds.
    """
    peak = run(Closed(MOST_CLIENTS))
    yield peak, False
    low, high = 0.0, peak.requests_per_s
    # Where so many clients are answered in time, they may not have filled the server.
    is_bound = not objective.holds(peak)
    rate = 0.8 * high
    for _ in range(TRIES):
        if (is_bound and high - low <= CLOSE * high) or rate <= 0:
            break
        tried = run(replace(arrivals, rate=rate))
        holds = objective.holds(tried)
        yield tried, False
        is_bound = is_bound or not holds
        low, high = (rate, high if is_bound else max(high, 2 * rate)) if holds else (low, rate)
        rate = (low + high) / 2
    rate, again = low, 0
    while rate > 0 and again < TRIES:
        # Other requests than before: a rate may have held by luck.
        tried = run(replace(arrivals, rate=rate, seed=arrivals.seed + again + 1))
        holds = objective.holds(tried)
        yield tried, holds
        if holds:
            return
        rate, again = rate * (1 - STEP), again + 1

"""Searches the highest rate at which a server holds an objective: bracket it, then bisect the bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.load.measure import Row

# What a server answers so many clients at once is about the most that it answers at all.
MOST_CLIENTS = 32
# The rate is found to this share; a rate that does not hold again is lowered by it.
CLOSE = 0.05
# Until a rate holds and another one does not, the next rate is so many times the last one, or this part of it.
UP, DOWN, LEAST_DOWN = 2.0, 0.7, 0.25
# Rates that are tried at most, and the lowest one, as a share of the first.
TRIES, LOWEST = 16, 1 / 128


@dataclass(frozen=True)
class Trial:
    """What came of a rate: requests per second that were answered, and whether the objective was held.

    The p99 is infinite where requests failed.
    """

    rate: float
    answered: float
    holds: bool
    p99_ms: float = math.inf

    def is_better(self, other: Trial) -> bool:
        """Tell whether this one alone holds, or holds more; of two that don't, whether it comes nearer."""
        if self.holds and other.holds:
            return self.rate > other.rate
        return self.holds or (not other.holds and self.p99_ms < other.p99_ms)

    def __str__(self) -> str:
        """Write the rate that was answered, and the p99."""
        p99 = "without end" if math.isinf(self.p99_ms) else f"of {self.p99_ms:.1f} ms"
        return f"{self.answered:.1f} requests/s at a p99 {p99}"


def highest(at: Callable[[float], Trial], first: float, high: float = math.inf) -> float:
    """Find the highest rate that holds, to the share `CLOSE`; 0 if none does.

    Args:
        at: tries a rate.
        first: the rate to begin with.
        high: a rate that does not hold.
    """
    low, rate = 0.0, first
    for _ in range(TRIES):
        trial = at(rate)
        if trial.holds:
            low = rate
        else:
            high = rate
        if high <= (1 + CLOSE) * low or high <= LOWEST * first:
            break
        rate = _next(low, high, trial)
    return low


def _next(low: float, high: float, last: Trial) -> float:
    """Choose the rate to try between bounds after a trial."""
    if low:
        return UP * low if math.isinf(high) else math.sqrt(low * high)
    # A server that is overloaded shows about what it can answer, or much less.
    return min(DOWN * high, max(LEAST_DOWN * high, 0.9 * last.answered))


def confirmed(at: Callable[[float], Trial], rate: float) -> Trial:
    """Lower a rate until it holds once more; returns the last trial, which may not hold."""
    trial = at(rate)
    for _ in range(TRIES):
        if trial.holds:
            break
        trial = at(trial.rate * (1 - CLOSE))
    return trial


def search(slo_ms: float, run: Callable[[Mode], Row]) -> bool:
    """Find the highest rate at which the percentile is at most `slo_ms`; False if there is none.

    Other arrivals confirm it, in the last row.
    It is below the rate of a closed loop, unless the closed loop holds the objective itself.
    """

    def holds(row: Row) -> bool:
        return row.slo_percentile_ms is not None and row.slo_percentile_ms <= slo_ms

    peak = run(Closed(MOST_CLIENTS))
    if not (most := peak.requests_per_s):
        return False

    def at(rate: float, seed: int = 0) -> Trial:
        row = run(Arrivals(rate, seed=seed))
        return Trial(rate, row.requests_per_s, holds(row))

    # Where so many clients are answered in time, they may not have filled the server.
    found = highest(at, 0.8 * most, math.inf if holds(peak) else most)
    # A rate may have held by luck.
    return bool(found) and confirmed(partial(at, seed=1), found).holds

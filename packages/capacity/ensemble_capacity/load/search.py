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


@dataclass(frozen=True)
class Bracket:
    """Bounds of the highest rate that holds: it is `low` or more, and below `high`."""

    low: float = 0.0
    high: float = math.inf

    def narrowed(self, trial: Trial) -> Bracket:
        """Take a trial into account; a lower rate that fails outweighs a higher one that held."""
        if trial.holds:
            return Bracket(max(self.low, trial.rate), self.high)
        return Bracket(self.low if self.low < trial.rate else 0.0, min(self.high, trial.rate))

    def next(self, last: Trial) -> float:
        """Choose the rate to try after a trial."""
        if self.low and self.high < math.inf:
            return math.sqrt(self.low * self.high)
        if self.low:
            return UP * self.low
        # A server that is overloaded shows about what it can answer, or much less.
        return min(DOWN * self.high, max(LEAST_DOWN * self.high, 0.9 * last.answered))


def bracket(at: Callable[[float], Trial], first: float, *, known: Bracket = Bracket()) -> Bracket:
    """Find the highest rate that holds, to the share `CLOSE`.

    Args:
        at: tries a rate.
        first: the rate to begin with.
        known: bounds that are known before.
    """
    found, rate = known, first
    for _ in range(TRIES):
        trial = at(rate)
        found = found.narrowed(trial)
        if found.high <= (1 + CLOSE) * found.low or found.high <= LOWEST * first:
            break
        rate = found.next(trial)
    return found


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
    known = Bracket() if holds(peak) else Bracket(high=most)
    found = bracket(at, 0.8 * most, known=known)
    if not found.low:
        return False
    # A rate may have held by luck.
    return confirmed(partial(at, seed=1), found.low).holds

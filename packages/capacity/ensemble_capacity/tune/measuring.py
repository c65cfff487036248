"""Serves the best candidates and loads them: what was measured corrects what is measured next, and decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.plan.server import loaded, serving
from ensemble_capacity.tune.candidate import Candidate
from ensemble_capacity.tune.kept import Kept, Seen
from ensemble_capacity.tune.search import Goal, Tried, ranked

# Candidates that are served, rates that each is loaded by at most, and how long by each, seconds.
MEASURED, ATTEMPTS, SECONDS = 3, 3, 10.0
# How long all of it takes at most, where a server takes 25 s to start and to stop, seconds.
LONGEST_S = (MEASURED + 1) * (25.0 + ATTEMPTS * (SECONDS + 2))
# From a rate to the next one, while it is not known between which two the limit is; of a promise, which is near it.
STEP, LOWERED = 0.85, 0.95

At = Callable[[float], Seen]


def confirmed(tried: Tried, goal: Goal, at: At, first: float, enough: float | None = None) -> Tried:
    """The highest rate that was measured at which the p99 of a candidate holds.

    Args:
        tried: the candidate.
        goal: what is wanted.
        at: measures at a rate.
        first: the rate to begin with.
        enough: a rate above which none is tried.
    """
    rate, held, failed = first, None, None
    for _ in range(ATTEMPTS):
        rate = min(rate, enough or rate)
        seen = at(rate)
        now = replace(tried, rate=rate, measured_rate=seen.rate, measured_p99_ms=seen.p99_ms)
        if now.p99_ms <= goal.p99_ms:
            held = now
            if rate == enough:
                break
        elif failed is None or now.p99_ms <= failed.p99_ms:
            failed = now
        if held is None:
            # More than it answers says nothing of the p99, but what it answers is known.
            rate = STEP * (min(rate, seen.rate) or rate)
        else:
            rate = held.rate / STEP if failed is None else (held.rate + failed.rate) / 2
    best = held or failed
    assert best is not None
    return best


def promised(best: Tried, goal: Goal, at: At) -> Tried:
    """The rate of the chosen candidate at which the p99 also holds in a fresh server, under other arrivals."""
    rate = best.rate
    for _ in range(ATTEMPTS):
        seen = at(rate)
        best = replace(best, rate=rate, measured_rate=seen.rate, measured_p99_ms=seen.p99_ms)
        if best.p99_ms <= goal.p99_ms:
            break
        rate *= LOWERED
    return best


@dataclass(frozen=True)
class Measuring:
    """Measures candidates.

    Attributes:
        config: the Serve config.
        goal: what is wanted.
        images: that are sent.
        cores: that the server runs on.
        kept: what was measured before.
        file: keeps it.
        enough: a rate above which none is tried; None for no such rate.
    """

    config: Mapping[str, Any]
    goal: Goal
    images: Sequence[bytes]
    cores: int
    kept: Kept
    file: Path
    enough: float | None = None

    def measured(self, tried: Sequence[Tried]) -> list[Tried]:
        """The candidates, the best first; some are measured, and the best of these is, in a fresh server, once more."""
        left, found, speed = list(tried), list[Tried](), dict[str, float]()
        count = min(MEASURED, len(left))
        for number in range(1, count + 1):
            each = ranked(left, self.goal, speed)[0]
            left.remove(each)
            placement = each.candidate.placement
            first = each.rate * speed.get(placement, 1.0)
            title = f"Measuring {number} of {count}: {each.candidate}"
            with self._measurements(each.candidate, title) as at:
                found.append(confirmed(each, self.goal, at, first, self.enough))
            held = found[-1].p99_ms <= self.goal.p99_ms
            if not (held and found[-1].rate == self.enough):
                speed[placement] = found[-1].rate * (1.0 if held else STEP) / each.rate
        best, *others = ranked(found, self.goal)
        if best.p99_ms <= self.goal.p99_ms:
            with self._measurements(best.candidate, f"Once more, in a fresh server: {best.candidate}", 1) as at:
                best = promised(best, self.goal, at)
        return [best, *others, *left]

    @contextmanager
    def _measurements(self, candidate: Candidate, title: str, seed: int = 0) -> Iterator[At]:
        """Measures at a rate; a server is started when the first measurement is not known yet."""
        urls: list[str] = []
        print(title, flush=True)
        with ExitStack() as stack:

            def at(rate: float) -> Seen:
                rate = round(rate, 2)
                key = f"{candidate}, {self.cores} cores, {rate:g}/s, arrivals {seed}"
                if (known := self.kept.seen.get(key)) is None:
                    if not urls:
                        urls.append(stack.enter_context(serving(candidate.config(self.config), self.cores)))
                    row = loaded(urls[0], self.images, Arrivals(rate, seed=seed), SECONDS)
                    is_well = row.requests and not row.failed
                    known = Seen(float(row.requests_per_s), float(row.percentiles_ms["p99"]) if is_well else None)
                    self.kept.seen[key] = known
                    self.kept.write(self.file)
                p99 = "some failed" if known.p99 is None else f"p99 {known.p99:.1f} ms"
                print(f"  {rate:.0f}/s: {known.rate:.0f} answered, {p99}", flush=True)
                return known

            yield at

"""Measures candidates: in rounds, each with fewer candidates and closer searches, and the best for a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ensemble_capacity.load.load import Arrivals
from ensemble_capacity.load.search import Trial, bracket, confirmed
from ensemble_capacity.plan.server import loaded, serving
from ensemble_capacity.tune.candidates import Candidate, Goal, Tried, diverse, ranked
from ensemble_capacity.tune.journal import Journal, Seen


@dataclass(frozen=True)
class Round:
    """A round of successive halving.

    Attributes:
        count: of candidates.
        close: the share to which the highest rate of each is found.
        seconds: that each rate is measured.
    """

    count: int
    close: float
    seconds: float


# Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization (2016).
ROUNDS = (Round(6, 0.5, 5.0), Round(3, 0.05, 10.0))
# The rate that is written is held for so long.
PROMISE_S = 60.0
# About how long a server takes to start and to stop, and how many rates are measured of a candidate.
START_S, RATES = 25.0, 5
TAKES_S = sum(each.count * (START_S + RATES * (each.seconds + 1.5)) for each in ROUNDS) + START_S + PROMISE_S

Load = Callable[[float, float], Seen]


@dataclass(frozen=True)
class Measuring:
    """Measures candidates.

    Attributes:
        config: the Serve config.
        goal: the p99 to hold.
        images: that are sent.
        cores: that the server runs on.
        journal: the measurements so far.
        file: keeps the journal.
        enough: a rate above which none is tried.
    """

    config: Mapping[str, Any]
    goal: Goal
    images: Sequence[bytes]
    cores: int
    journal: Journal
    file: Path
    enough: float = float("inf")

    def best(self, predicted: Sequence[Tried]) -> list[Tried]:
        """Measure the best candidates in rounds, and the best of these once more; the best first, then the others."""
        left, speed = list(predicted), dict[str, float]()
        for number, each in enumerate(ROUNDS, 1):
            chosen, found = diverse(left, each.count) if number == 1 else left[: each.count], list[Tried]()
            others = [tried for tried in left if tried not in chosen]
            while chosen and not (found and self._is_enough(found[-1])):
                tried = ranked(chosen, self.goal, speed if number == 1 else None)[0]
                chosen.remove(tried)
                title = f"Round {number}, {len(found) + 1} of {len(found) + len(chosen) + 1}: {tried.candidate}"
                found.append(self._searched(tried, each, speed, title))
            left = [*ranked(found, self.goal), *chosen, *others]
            if self._is_enough(left[0]):
                break
        return [self._promised(left[0]), *left[1:]]

    def _is_enough(self, tried: Tried) -> bool:
        return tried.answered is not None and tried.p99_ms <= self.goal.p99_ms and tried.rate >= self.enough

    def _searched(self, tried: Tried, each: Round, speed: dict[str, float], title: str) -> Tried:
        """Search the highest rate of a candidate; note how many times the predicted rate it is, for its placement."""
        placement, seen = tried.candidate.placement, list[tuple[float, Seen]]()
        first = tried.rate if tried.answered is not None else tried.rate * speed.get(placement, 1.0)
        with self._server(tried.candidate, title) as load:

            def at(rate: float) -> Trial:
                seen.append((rate, load(rate, each.seconds)))
                return self._trial(*seen[-1])

            # A rate that held in the last round may have held by luck: the search begins anew, from there.
            low = bracket(at, first, close=each.close, enough=self.enough).low
        if low:
            speed[placement] = low / tried.predicted_rate
        held = [(rate, one) for rate, one in seen if rate == low]
        rate, one = held[-1] if held else min(seen, key=lambda each: each[1].p99_ms)
        return replace(tried, rate=rate, p99_ms=one.p99_ms, answered=one.rate)

    def _trial(self, rate: float, seen: Seen) -> Trial:
        return Trial(rate, seen.rate, seen.p99_ms <= self.goal.p99_ms)

    def _promised(self, tried: Tried) -> Tried:
        """Lower the rate until the p99 holds for a minute in a fresh server, under other arrivals."""
        if tried.p99_ms > self.goal.p99_ms:
            return tried
        with self._server(tried.candidate, f"For a minute, in a fresh server: {tried.candidate}", seed=1) as load:
            seen: dict[float, Seen] = {}

            def at(rate: float) -> Trial:
                seen[rate] = load(rate, PROMISE_S)
                return self._trial(rate, seen[rate])

            last = confirmed(at, tried.rate)
        return replace(tried, rate=last.rate, p99_ms=seen[last.rate].p99_ms, answered=last.answered)

    @contextmanager
    def _server(self, candidate: Candidate, title: str, seed: int = 0) -> Iterator[Load]:
        """Measure rates, for some seconds each; a server is started when the first one is not in the journal."""
        urls: list[str] = []
        print(title, flush=True)
        with ExitStack() as stack:

            def load(rate: float, seconds: float) -> Seen:
                rate = float(f"{rate:.4g}")
                key = f"{candidate}, {self.cores} cores, {rate:g}/s for {seconds:g} s, arrivals {seed}"
                if (known := self.journal.seen.get(key)) is None:
                    if not urls:
                        urls.append(stack.enter_context(serving(candidate.config(self.config), self.cores)))
                    row = loaded(urls[0], self.images, Arrivals(rate, seed=seed), seconds)
                    is_well = row.requests and not row.failed
                    known = Seen(float(row.requests_per_s), float(row.percentiles_ms["p99"]) if is_well else None)
                    self.journal.seen[key] = known
                    self.journal.write(self.file)
                p99 = "some failed" if known.p99 is None else f"p99 {known.p99:.1f} ms"
                print(f"  {rate:.1f}/s: {known.rate:.1f} answered, {p99}", flush=True)
                return known

            yield load

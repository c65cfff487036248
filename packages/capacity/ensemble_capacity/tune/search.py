"""What is wanted, and what the simulation says of candidates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.load import Closed, Mode
from ensemble_capacity.plan.prediction import Prediction, predict
from ensemble_capacity.plan.profile import Profile
from ensemble_capacity.plan.setting import setting
from ensemble_capacity.tune.candidate import Candidate, variants
from ensemble_capacity.tune.form import AS_CONFIGURED, Form, Versions
from scripts import configuration

# Clients that keep a server as busy as it can be, to find the rates that are worth a try.
MANY = 64
# The lowest rate that is tried, of the most that a closed loop gets.
LOWEST = 0.1
# Requests and steps of a first look at every candidate, and of a closer one at the best.
ROUGH, EXACT, FINALISTS = (400, 4), (3000, 6), 12


@dataclass(frozen=True)
class Goal:
    """What is wanted: the most requests per second, of Poisson arrivals, at a p99 of at most so many milliseconds.

    Attributes:
        p99_ms: the limit.
        rate: requests per second that are enough; None for as many as possible.
    """

    p99_ms: float
    rate: float | None = None

    def is_met(self, tried: Tried) -> bool:
        """Whether a candidate reaches it."""
        return tried.p99_ms <= self.p99_ms and tried.rate >= (self.rate or 0)


@dataclass(frozen=True)
class Tried:
    """A candidate, the highest rate at which its p99 was predicted to hold, and what was then measured at it.

    Attributes:
        candidate: the settings.
        rate: requests per second; where no rate holds, the lowest that was tried.
        predicted: at this rate.
        measured_rate: requests per second that were answered; None where nothing was measured.
        measured_p99_ms: likewise.
    """

    candidate: Candidate
    rate: float
    predicted: Prediction
    measured_rate: float | None = None
    measured_p99_ms: float | None = None

    @property
    def p99_ms(self) -> float:
        """What is known of p99: what was measured, or else predicted."""
        return self.predicted.p99_ms if self.measured_p99_ms is None else self.measured_p99_ms


@dataclass(frozen=True)
class Trial:
    """Predicts what candidates hold.

    Attributes:
        config: the Serve config.
        profiles: of the machine, by the versions that are served.
        goal: what is wanted.
        cores: of the machine.
        forms: what may be served.
        clients_here: whether the clients compute on the server's cores.
        fixed: fields of a candidate that the user holds, by name.
    """

    config: Mapping[str, Any]
    profiles: Mapping[Versions, Profile]
    goal: Goal
    cores: int
    forms: Sequence[Form] = (AS_CONFIGURED,)
    clients_here: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def highest(self, candidate: Candidate, requests: int, steps: int) -> Tried:
        """The highest rate at which a candidate's p99 is predicted to hold, by halves.

        Args:
            candidate: the settings.
            requests: that each simulation has.
            steps: halves.
        """
        form = candidate.form
        given = setting(next(configuration.ours(candidate.config(self.config))), form.exits, self.cores)

        def at(load: Mode) -> Prediction:
            here, profile = self.clients_here, self.profiles[form.versions]
            return predict(given, profile, load, self.cores, clients_here=here, requests=requests)

        most = at(Closed(MANY)).requests_per_s
        low, high = LOWEST * most, most
        best = Tried(candidate, low, at(Arrivals(low)))
        if best.p99_ms > self.goal.p99_ms:
            return best
        for _ in range(steps):
            middle = (low + high) / 2
            predicted = at(Arrivals(middle))
            if predicted.p99_ms <= self.goal.p99_ms:
                low, best = middle, Tried(candidate, middle, predicted)
            else:
                high = middle
        return best

    def best(self, grid: Sequence[Candidate]) -> list[Tried]:
        """Candidates, the best first, in stages: the grid, the best of it in other forms, and again these, closer."""
        first = self._looked_at(grid)
        others = dict.fromkeys(
            other
            for each in first[:FINALISTS]
            for other in variants(each.candidate, self.forms, self._streams(each.candidate))
        )
        every = ranked([*first, *self._looked_at(list(others))], self.goal)
        closer = [self.highest(each.candidate, *EXACT) for each in tqdm(every[:FINALISTS], "closer", leave=False)]
        return ranked(closer, self.goal) + every[FINALISTS:]

    def takes_s(self, grid: Sequence[Candidate]) -> float:
        """About how long `best` takes, seconds, by the first and the last of the grid."""
        began = time.perf_counter()
        for each in (grid[0], grid[-1]):
            self.highest(each, *ROUGH)
        best, closely = min(FINALISTS, len(grid)), EXACT[0] * (EXACT[1] + 2) / (ROUGH[0] * (ROUGH[1] + 2))
        others = len(self.forms) * (1 + len(self._streams(grid[0]))) - 1
        return (time.perf_counter() - began) / 2 * (len(grid) + best * (others + closely))

    def _looked_at(self, among: Sequence[Candidate]) -> list[Tried]:
        return ranked([self.highest(each, *ROUGH) for each in tqdm(among, "simulate", leave=False)], self.goal)

    def _streams(self, candidate: Candidate) -> list[int]:
        """The numbers of streams that were measured with its threads, besides the fastest."""
        profile = self.profiles[candidate.form.versions]
        members = next(configuration.ours(self.config))["args"]["members"]
        if "streams" in self.fixed:
            return []
        threads = candidate.threads or candidate.share(self.cores, len(members))
        measured = [profile.streams(member["name"], threads) for member in members]
        return sorted(set.intersection(*map(set, measured)))


def ranked(tried: Iterable[Tried], goal: Goal, speed: Mapping[str, float] | None = None) -> list[Tried]:
    """The best first: those that hold the p99, by their rate; then the others, by how near they come.

    Args:
        tried: the candidates.
        goal: what is wanted.
        speed: by placement, how many times the predicted rate held where that was measured.
    """

    def order(each: Tried) -> tuple[bool, float]:
        holds = each.p99_ms <= goal.p99_ms
        return not holds, -each.rate * (speed or {}).get(each.candidate.placement, 1.0) if holds else each.p99_ms

    return sorted(tried, key=order)

"""The candidates, and which of them reach a goal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts import configuration
from scripts.load.arrivals import Arrivals
from scripts.load.load import Closed, Mode
from scripts.plan.prediction import Prediction, predict
from scripts.plan.profile import Placement, Profile
from scripts.plan.setting import setting
from scripts.plan.variant import placed, tuned

SIZES, WAITS_MS, IN_FLIGHT = (4, 8, 16, 32), (0.0, 2.0, 5.0), (1, 2)
# Clients that keep a server as busy as it can be, to find the rates that are worth a try.
MANY = 64
# The lowest rate that is tried, of the most that a closed loop gets.
LOWEST = 0.1
# Requests and steps of a first look at every candidate, and of a closer one at the best.
ROUGH, EXACT, FINALISTS = (400, 3), (3000, 6), 12
# Rates that are measured at most of a candidate whose p99 does not hold, and from one to the next.
ATTEMPTS, LOWER = 3, 0.85


@dataclass(frozen=True)
class Candidate:
    """Settings to try.

    Attributes:
        placement: of every node.
        ingresses: replicas of the ingress.
        nodes: replicas of each separate node that computes.
        threads: of each member; None for its share of the cores.
        max_batch_size: images.
        batch_wait_ms: of the ingress.
        max_concurrent_batches: of the ingress.
    """

    placement: Placement
    ingresses: int
    nodes: int
    threads: int | None
    max_batch_size: int
    batch_wait_ms: float
    max_concurrent_batches: int

    @property
    def ingress(self) -> dict[str, Any]:
        """What it sets of the ingress."""
        names = ("max_batch_size", "batch_wait_ms", "max_concurrent_batches")
        return {name: getattr(self, name) for name in names}

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The Serve config with its settings."""
        moved = placed(config, self.placement, self.ingresses, self.nodes)
        return tuned(moved, threads=self.threads, ingress=self.ingress)

    def __str__(self) -> str:
        """The candidate in words."""
        replicas = f"{self.ingresses}" if self.placement == "inline" else f"{self.ingresses} + {self.nodes} each"
        threads = "share" if self.threads is None else f"{self.threads}"
        waits = f"wait {self.batch_wait_ms:g} ms"
        batches = f"batch {self.max_batch_size}, {waits}, in flight {self.max_concurrent_batches}"
        return f"{self.placement}, replicas {replicas}, threads {threads}, {batches}"


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

    def at_most(self, rate: float | None) -> Tried:
        """The same, at a rate that is enough."""
        return self if rate is None else replace(self, rate=min(rate, self.rate))


def candidates(cores: int, fixed: Mapping[str, Any]) -> Iterator[Candidate]:
    """The grid: every placement, batch and number of replicas that suits so many cores.

    Args:
        cores: of the machine.
        fixed: fields of a candidate that the user holds, by name.
    """
    replicas = sorted({1, 2, *(count for count in (4, 8) if count <= cores // 2)} & set(range(1, cores + 1)))
    threads: Sequence[int | None] = (None, 1) if cores > 1 else (None,)
    grid: dict[str, Sequence[Any]] = {
        "placement": ("inline", "separate"),
        "ingresses": replicas,
        "nodes": replicas,
        "threads": threads,
        "max_batch_size": SIZES,
        "batch_wait_ms": WAITS_MS,
        "max_concurrent_batches": IN_FLIGHT,
    }
    grid |= {name: (value,) for name, value in fixed.items()}
    for values in itertools.product(*grid.values()):
        candidate = Candidate(**dict(zip(grid, values, strict=True)))
        # Inline there are no separate nodes to have replicas of.
        if candidate.placement == "separate" or candidate.nodes == grid["nodes"][0]:
            yield candidate


@dataclass(frozen=True)
class Trial:
    """Predicts what candidates hold.

    Attributes:
        config: that they change.
        profile: of this machine.
        goal: what is wanted.
        cores: of the machine.
        exits: of a cascade.
        clients_here: whether the clients compute on the server's cores.
    """

    config: Mapping[str, Any]
    profile: Profile
    goal: Goal
    cores: int
    exits: Sequence[float] | None = None
    clients_here: bool = False

    def highest(self, candidate: Candidate, requests: int, steps: int) -> Tried:
        """The highest rate at which a candidate's p99 is predicted to hold, by halves.

        Args:
            candidate: the settings.
            requests: that each simulation has.
            steps: halves.
        """
        given = setting(next(configuration.ours(candidate.config(self.config))), self.exits, self.cores)

        def at(load: Mode) -> Prediction:
            here = self.clients_here
            return predict(given, self.profile, load, self.cores, clients_here=here, requests=requests)

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

    def best(self, among: Iterable[Candidate]) -> list[Tried]:
        """Candidates, the best first: all are looked at by few requests, and the best of them by many."""
        first = ranked([self.highest(each, *ROUGH) for each in among], self.goal)
        closer = [self.highest(each.candidate, *EXACT) for each in first[:FINALISTS]]
        return ranked(closer, self.goal) + first[FINALISTS:]


def ranked(tried: Iterable[Tried], goal: Goal) -> list[Tried]:
    """The best first: those that hold the p99, by their rate; then the others, by how near they come."""

    def order(each: Tried) -> tuple[bool, float]:
        holds = each.p99_ms <= goal.p99_ms
        return not holds, -each.rate if holds else each.p99_ms

    return sorted(tried, key=order)


def confirmed(tried: Tried, goal: Goal, measure: Callable[[float], tuple[float, float]]) -> Tried:
    """Measure a candidate at the rate that was predicted, and at lower ones while its p99 does not hold.

    Args:
        tried: the candidate.
        goal: what is wanted.
        measure: takes a rate; gives requests per second that were answered, and p99 in milliseconds.
    """
    seen: list[Tried] = []
    for attempt in range(ATTEMPTS):
        rate = tried.rate * LOWER**attempt
        answered, p99_ms = measure(rate)
        seen.append(replace(tried, rate=rate, measured_rate=answered, measured_p99_ms=p99_ms))
        if p99_ms <= goal.p99_ms:
            return seen[-1]
    return min(seen, key=lambda each: each.p99_ms)

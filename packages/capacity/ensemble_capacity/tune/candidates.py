"""The settings that are tried: the grid of them, and their ranking by predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan.model import Prediction, predict
from ensemble_capacity.plan.placements import placed, tuned
from ensemble_capacity.plan.profile import Placement, Profile
from ensemble_capacity.plan.scenario import scenario
from graph.placement import share_of_threads
from scripts import configuration

SIZES, WAITS_MS, IN_FLIGHT = (4, 8, 16, 32), (0.0, 2.0, 5.0), (1, 2)
# Clients that keep a server busy; the halves by which the highest predicted rate is found.
MANY, HALVES = 64, 10


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
        streams: of each member; None for the configuration's, or else the fastest.
    """

    placement: Placement
    ingresses: int
    nodes: int
    threads: int | None
    max_batch_size: int
    batch_wait_ms: float
    max_concurrent_batches: int
    streams: int | None = None

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make the Serve config with these settings."""
        names = ("max_batch_size", "batch_wait_ms", "max_concurrent_batches")
        moved = placed(config, self.placement, self.ingresses, self.nodes)
        ingress = {name: getattr(self, name) for name in names}
        return tuned(moved, threads=self.threads, streams=self.streams, ingress=ingress)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The settings that a prediction is most often wrong about: candidates that differ in them are measured."""
        return self.placement, self.ingresses, self.nodes, self.threads

    @property
    def replicas(self) -> int:
        """Replicas of each member."""
        return self.ingresses if self.placement == "inline" else self.nodes

    def __str__(self) -> str:
        """Write the candidate."""
        replicas = f"{self.ingresses}" if self.placement == "inline" else f"{self.ingresses} + {self.nodes} each"
        threads = "share" if self.threads is None else f"{self.threads}"
        streams = "" if self.streams is None else f", streams {self.streams}"
        batches = (
            f"batch {self.max_batch_size}, wait {self.batch_wait_ms:g} ms, in flight {self.max_concurrent_batches}"
        )
        return f"{self.placement}, replicas {replicas}, threads {threads}{streams}, {batches}"


# The names that `--hold` takes.
HELD = list(Candidate.__dataclass_fields__)


@dataclass(frozen=True)
class Goal:
    """The most requests per second, of Poisson arrivals, at a p99 of at most so many milliseconds.

    Attributes:
        p99_ms: the limit.
        rate: requests per second that are required; None for as many as possible.
    """

    p99_ms: float
    rate: float | None = None


@dataclass(frozen=True)
class Tried:
    """A candidate, and the highest rate at which it holds the p99; where none is known, the rate of the lowest p99.

    Attributes:
        candidate: the settings.
        predicted: at the highest rate that is predicted to hold.
        rate: requests per second that were sent; the predicted rate where nothing was measured.
        p99_ms: at this rate, measured or else predicted; infinite where requests failed.
        answered: requests per second that were answered; None where nothing was measured.
    """

    candidate: Candidate
    predicted: Prediction
    rate: float
    p99_ms: float
    answered: float | None = None

    @property
    def predicted_rate(self) -> float:
        """The highest rate that is predicted to hold the p99."""
        return self.predicted.requests_per_s

    def meets(self, goal: Goal) -> bool:
        """Tell whether the candidate reaches a goal."""
        return self.p99_ms <= goal.p99_ms and self.rate >= (goal.rate or 0)


def candidates(cores: int, fixed: Mapping[str, Any], members: int = 2) -> list[Candidate]:
    """Make the grid: every placement, batch, number of replicas and of threads that suits `cores` cores.

    Args:
        cores: of the machine.
        fixed: fields of a candidate that the user holds, by name.
        members: that compute at the same time on the cores.
    """
    replicas = sorted({1, 2, *(count for count in (4, 8) if count <= cores // 2)} & set(range(1, cores + 1)))
    grid: dict[str, Sequence[Any]] = {
        "placement": ("inline", "separate"),
        "ingresses": replicas,
        "nodes": replicas,
        "threads": (None, *sorted({1, cores})),
        "max_batch_size": SIZES,
        "batch_wait_ms": WAITS_MS,
        "max_concurrent_batches": IN_FLIGHT,
    }
    grid |= {name: (value,) for name, value in fixed.items()}
    found = (Candidate(**dict(zip(grid, each, strict=True))) for each in itertools.product(*grid.values()))

    def is_one(each: Candidate) -> bool:
        """Tell whether this is no other candidate by another name, and has no more threads than cores."""
        if each.placement == "inline" and each.nodes != grid["nodes"][0]:
            return False
        if each.threads is None or "threads" in fixed:
            return True
        share = share_of_threads(cores, members, each.replicas)
        return each.threads != share and each.threads * each.replicas <= cores

    return [each for each in found if is_one(each)]


@dataclass(frozen=True)
class Predictions:
    """Predicts the rates that candidates hold.

    Attributes:
        config: the Serve config.
        profile: of the machine.
        goal: the p99 to hold.
        cores: of the machine.
        exits: of a cascade; see `Scenario.exits`.
        clients_here: whether the clients compute on the server's cores.
        fixed: fields of a candidate that the user holds, by name.
    """

    config: Mapping[str, Any]
    profile: Profile
    goal: Goal
    cores: int
    exits: Sequence[float] | None = None
    clients_here: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def ranked(self) -> list[Tried]:
        """Predict every candidate with every number of streams; the best first."""
        arguments = next(configuration.ours(self.config))["args"]
        names = [member["name"] for member in arguments["members"]]
        # The members of a cascade compute in turn.
        at_once = 1 if (arguments.get("ensemble") or {}).get("cascade") else len(names)
        grid = candidates(self.cores, self.fixed, at_once)
        every = (
            replace(each, streams=streams)
            for each in grid
            for streams in (each.streams, *self._streams(each, names, at_once))
        )
        return ranked(map(self.highest, every), self.goal)

    def highest(self, candidate: Candidate) -> Tried:
        """Find the highest rate at which a candidate's p99 is predicted to hold, or else take half of its peak."""
        given = scenario(next(configuration.ours(candidate.config(self.config))), self.exits, self.cores)

        def at(load: Arrivals | Closed) -> Prediction:
            return predict(given, self.profile, load, self.cores, clients_here=self.clients_here)

        low, high = 0.0, at(Closed(MANY)).requests_per_s
        # Where none is predicted to hold, half of the most that it answers is where a measurement begins.
        best = at(Arrivals(high / 2))
        for _ in range(HALVES):
            middle = (low + high) / 2
            predicted = at(Arrivals(middle))
            if predicted.p99_ms <= self.goal.p99_ms:
                low, best = middle, predicted
            else:
                high = middle
        return Tried(candidate, best, best.requests_per_s, best.p99_ms)

    def _streams(self, candidate: Candidate, names: Sequence[str], at_once: int) -> list[int]:
        """List the numbers of streams that were measured with its threads, besides the fastest."""
        if "streams" in self.fixed:
            return []
        threads = candidate.threads or share_of_threads(self.cores, at_once, candidate.replicas)
        measured = [self.profile.streams(name, threads) for name in names]
        return sorted(set.intersection(*map(set, measured)))


def ranked(tried: Iterable[Tried], goal: Goal, speed: Mapping[str, float] | None = None) -> list[Tried]:
    """Sort candidates, the best first: by rate where the p99 holds; the others by how near they come.

    Args:
        tried: the candidates.
        goal: the p99 to hold.
        speed: by placement, the measured rate as a multiple of the predicted one.
    """

    def order(each: Tried) -> tuple[bool, float]:
        holds = each.p99_ms <= goal.p99_ms
        return not holds, -each.rate * (speed or {}).get(each.candidate.placement, 1.0) if holds else each.p99_ms

    return sorted(tried, key=order)


def diverse(tried: Sequence[Tried], count: int) -> list[Tried]:
    """Choose the best candidate of each shape first, and then the best of the others."""
    first: dict[Any, Tried] = {}
    for each in tried:
        first.setdefault(each.candidate.shape, each)
    chosen = [*first.values(), *(each for each in tried if each is not first[each.candidate.shape])]
    return chosen[:count]

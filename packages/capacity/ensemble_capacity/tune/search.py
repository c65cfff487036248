"""Searches the settings that hold the most requests per second at a p99, one setting after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.load.search import CLOSE, MOST_CLIENTS, Trial, bracket, confirmed
from ensemble_capacity.serving import loaded, only_application, serving
from ensemble_capacity.tune.journal import Journal, Seen
from ensemble_capacity.tune.placements import Placement, placed, tuned
from scripts import configuration

# A rate is measured for so long, and the rate that is written is held for so long, seconds.
SECONDS, PROMISE_S = 8.0, 60.0
# A setting is changed if so many times the requests hold.
BETTER = 1 + CLOSE


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

    @classmethod
    def first(cls, config: Mapping[str, Any], held: Mapping[str, Any]) -> Candidate:
        """Begin with every node in one process, the configuration's own batches, and the settings that are held."""
        own = configuration.check_arguments(only_application(config)).ingress
        batches = own.max_batch_size, own.batch_wait_ms, own.max_concurrent_batches
        return replace(cls("inline", 1, 1, None, *batches), **held)

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make the Serve config with these settings."""
        names = ("max_batch_size", "batch_wait_ms", "max_concurrent_batches")
        moved = placed(config, self.placement, self.ingresses, self.nodes)
        return tuned(moved, threads=self.threads, ingress={name: getattr(self, name) for name in names})

    def __str__(self) -> str:
        """Write the candidate."""
        replicas = f"{self.ingresses}" if self.placement == "inline" else f"{self.ingresses} + {self.nodes} each"
        threads = "share" if self.threads is None else f"{self.threads}"
        batches = (
            f"batch {self.max_batch_size}, wait {self.batch_wait_ms:g} ms, in flight {self.max_concurrent_batches}"
        )
        return f"{self.placement}, replicas {replicas}, threads {threads}, {batches}"


# The names that `--hold` takes.
HELD = list(Candidate.__dataclass_fields__)


def neighbours(candidate: Candidate, name: str, cores: int) -> tuple[list[Any], list[Any]]:
    """List the values of a setting to try in two directions, the nearest first; one direction where none is nearer."""
    current = getattr(candidate, name)
    if name == "placement":
        return [each for each in ("inline", "separate") if each != current], []
    if name == "threads":
        # In no order, so that the others are tried even if the first holds no more.
        first, *others = [each for each in dict.fromkeys((None, 1, cores)) if each != current]
        return [first], others
    if name == "nodes" and candidate.placement == "inline":
        return [], []
    doubled: list[float] = [2**power for power in range(7)]
    listed: dict[str, list[float]] = {"batch_wait_ms": [0, 2, 5], "max_concurrent_batches": [1, 2, 4]}
    values = listed.get(name, doubled)
    if name in {"ingresses", "nodes"}:
        values = [each for each in doubled if each <= cores]
    return [each for each in values if each > current], [each for each in reversed(values) if each < current]


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
    """A candidate, and the highest rate at which it held the p99; where none did, the rate of the lowest p99.

    Attributes:
        candidate: the settings.
        rate: requests per second that were sent.
        answered: requests per second that were answered.
        p99_ms: at this rate; infinite where requests failed.
        is_challenge: whether this rate alone was tried, because it is that much above the best one's.
    """

    candidate: Candidate
    rate: float
    answered: float
    p99_ms: float
    is_challenge: bool = False

    def meets(self, goal: Goal) -> bool:
        """Tell whether the candidate reaches a goal."""
        return self.p99_ms <= goal.p99_ms and self.rate >= (goal.rate or 0)

    def rank(self, goal: Goal) -> tuple[bool, float]:
        """Order candidates, the best first: by rate where the p99 holds; the others by how near they come."""
        holds = self.p99_ms <= goal.p99_ms
        return not holds, -self.rate if holds else self.p99_ms


Load = Callable[[Mode, float], Seen]


@dataclass(frozen=True)
class Search:
    """Measures candidates.

    Attributes:
        config: the Serve config.
        goal: the p99 to hold.
        images: that are sent.
        cores: that the server runs on.
        journal: the measurements so far.
        file: keeps the journal.
        enough: a rate above which none is tried.
        held: settings that the user holds, by name.
    """

    config: Mapping[str, Any]
    goal: Goal
    images: Sequence[bytes]
    cores: int
    journal: Journal
    file: Path
    enough: float = float("inf")
    held: Mapping[str, Any] = field(default_factory=dict)

    def best(self, first: Candidate) -> list[Tried]:
        """Change one setting after the other while that holds more requests; every candidate, the best first.

        The best must hold its rate once more, for a minute in a fresh server.
        """
        best, tried = self._highest(first), list[Tried]()
        for name in HELD:
            if name in self.held or self._is_enough(best):
                continue
            for values in neighbours(best.candidate, name, self.cores):
                changed = False
                for value in values:
                    found = self._challenge(replace(best.candidate, **{name: value}), best)
                    if found.rank(self.goal) >= best.rank(self.goal):
                        tried.append(found)
                        break
                    tried.append(best)
                    best, changed = found, True
                if changed:
                    break
        return [self._promised(best), *sorted(tried, key=lambda each: each.rank(self.goal))]

    def _is_enough(self, tried: Tried) -> bool:
        return tried.p99_ms <= self.goal.p99_ms and tried.rate >= self.enough

    def _highest(self, candidate: Candidate) -> Tried:
        """Search the highest rate of a candidate."""
        with self._server(candidate) as load:
            most = load(Closed(MOST_CLIENTS), SECONDS).rate
            return self._searched(candidate, load, max(1.0, 0.8 * most))

    def _challenge(self, candidate: Candidate, best: Tried) -> Tried:
        """Search the highest rate of a candidate that holds more requests than the best one; of another, try one rate.

        Where the best one does not hold the p99 either, its own rate is tried.
        """
        holds = best.p99_ms <= self.goal.p99_ms
        rate = min(self.enough, best.rate * (BETTER if holds else 1.0))
        with self._server(candidate) as load:
            seen = load(Arrivals(rate), SECONDS)
            if seen.p99_ms > self.goal.p99_ms:
                return Tried(candidate, rate, seen.rate, seen.p99_ms, holds and rate < self.enough)
            return self._searched(candidate, load, rate)

    def _searched(self, candidate: Candidate, load: Load, first: float) -> Tried:
        seen, at = self._trials(load, SECONDS)
        low = bracket(at, first, enough=self.enough).low
        rate = low or min(seen, key=lambda each: seen[each].p99_ms)
        return Tried(candidate, rate, seen[rate].rate, seen[rate].p99_ms)

    def _trials(self, load: Load, seconds: float, seed: int = 0) -> tuple[dict[float, Seen], Callable[[float], Trial]]:
        """Make a function that tries a rate, and the measurements that it will have made, by rate."""
        seen: dict[float, Seen] = {}

        def at(rate: float) -> Trial:
            seen[rate] = load(Arrivals(rate, seed=seed), seconds)
            return Trial(rate, seen[rate].rate, seen[rate].p99_ms <= self.goal.p99_ms)

        return seen, at

    def _promised(self, tried: Tried) -> Tried:
        """Lower the rate until the p99 holds for a minute in a fresh server, under other arrivals."""
        if tried.p99_ms > self.goal.p99_ms:
            return tried
        print("For a minute, in a fresh server:", flush=True)
        with self._server(tried.candidate) as load:
            seen, at = self._trials(load, PROMISE_S, seed=1)
            last = confirmed(at, tried.rate)
        return Tried(tried.candidate, last.rate, last.answered, seen[last.rate].p99_ms)

    @contextmanager
    def _server(self, candidate: Candidate) -> Iterator[Load]:
        """Measure loads, for some seconds each; a server is started when the first one is not in the journal."""
        urls: list[str] = []
        print(candidate, flush=True)
        with ExitStack() as stack:

            def load(mode: Mode, seconds: float) -> Seen:
                if isinstance(mode, Arrivals):
                    mode = replace(mode, rate=float(f"{mode.rate:.4g}"))
                words = f"{mode.concurrency} at a time" if isinstance(mode, Closed) else f"{mode.rate:g}/s"
                key = f"{candidate}, {self.cores} cores, {mode} for {seconds:g} s"
                if (known := self.journal.seen.get(key)) is None:
                    if not urls:
                        urls.append(stack.enter_context(serving(candidate.config(self.config), self.cores)))
                    row = loaded(urls[0], self.images, mode, seconds)
                    is_well = row.requests and not row.failed
                    known = Seen(float(row.requests_per_s), float(row.percentiles_ms["p99"]) if is_well else None)
                    self.journal.seen[key] = known
                    self.journal.write(self.file)
                p99 = "some failed" if known.p99 is None else f"p99 {known.p99:.1f} ms"
                print(f"  {words}: {known.rate:.1f} answered, {p99}", flush=True)
                return known

            yield load

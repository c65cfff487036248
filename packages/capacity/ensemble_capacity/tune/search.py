"""Searches the settings that hold the most requests per second at a p99, one setting after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from deployments.contract.names import INGRESS
from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.search import CLOSE, MOST_CLIENTS, Trial, confirmed, highest
from ensemble_capacity.serving import loaded, only_application, serving
from scripts import configuration

# A rate is measured for so long, and the rate that is written is held for so long, seconds.
SECONDS, PROMISE_S = 8.0, 60.0
# A setting is changed if so many times the requests hold.
BETTER = 1 + CLOSE
NODES = ("transformer", "combiner", "labeler")
# What a replica may hold is the ingress' to bound; Serve's bounds are out of the way.
MOST_CALLS = 1000
# Of a core, per replica: a reservation, and no limit.
RESERVED = 0.05
# What the ingress has for another number of replicas, or for several machines.
DROPPED = {"autoscaling_config", "num_replicas", "max_replicas_per_node"}
Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Candidate:
    """Settings to try, with every node in one process.

    Attributes:
        replicas: of this process.
        threads: of each member; None for its share of the cores.
        max_batch_size: images.
        batch_wait_ms: of the ingress.
        max_concurrent_batches: of the ingress.
    """

    replicas: Positive
    threads: Positive | None
    max_batch_size: Positive
    batch_wait_ms: Annotated[float, Meta(ge=0, le=10_000)]
    max_concurrent_batches: Positive

    @classmethod
    def first(cls, config: Mapping[str, Any], held: Mapping[str, Any]) -> Candidate:
        """Begin with one process, the configuration's own batches, and the settings that are held."""
        own = configuration.check_arguments(only_application(config)).ingress
        batches = own.max_batch_size, own.batch_wait_ms, own.max_concurrent_batches
        return replace(cls(1, None, *batches), **held)

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make the Serve config with these settings."""
        made = deepcopy(dict(config))
        application = only_application(made)
        arguments = application["args"]
        batches = ("max_batch_size", "batch_wait_ms", "max_concurrent_batches")
        arguments["ingress"] = (arguments.get("ingress") or {}) | {name: getattr(self, name) for name in batches}
        for section in NODES:
            arguments[section] = {**(arguments.get(section) or {}), "placement": "inline"}
        for member in arguments["members"]:
            member["placement"] = "inline"
            member.pop("threads", None)
            # A member on another server has no threads here.
            member |= {} if self.threads is None else {"threads": self.threads}
        given = [each for each in application.get("deployments") or [] if each["name"] == INGRESS]
        own = {name: value for each in given for name, value in each.items() if name not in DROPPED}
        options = {**own.get("ray_actor_options", {}), "num_cpus": RESERVED}
        fixed = {"ray_actor_options": options, "num_replicas": self.replicas}
        application["deployments"] = [{"name": INGRESS, "max_ongoing_requests": MOST_CALLS, **own, **fixed}]
        return made

    def __str__(self) -> str:
        """Write the candidate."""
        threads = "share" if self.threads is None else f"{self.threads}"
        batches = (
            f"batch {self.max_batch_size}, wait {self.batch_wait_ms:g} ms, in flight {self.max_concurrent_batches}"
        )
        return f"replicas {self.replicas}, threads {threads}, {batches}"


# The names that `--hold` takes.
HELD = list(Candidate.__dataclass_fields__)


def neighbours(candidate: Candidate, name: str, cores: int) -> tuple[list[Any], list[Any]]:
    """List the values of a setting to try in two directions, the nearest first; one direction where none is nearer."""
    current = getattr(candidate, name)
    if name == "threads":
        # In no order, so that the others are tried even if the first holds no more.
        first, *others = [each for each in dict.fromkeys((None, 1, cores)) if each != current]
        return [first], others
    doubled: list[float] = [2**power for power in range(7)]
    listed: dict[str, list[float]] = {
        "replicas": [each for each in doubled if each <= cores],
        "batch_wait_ms": [0, 2, 5],
        "max_concurrent_batches": [1, 2, 4],
    }
    values = listed.get(name, doubled)
    return [each for each in values if each > current], [each for each in reversed(values) if each < current]


@dataclass(frozen=True)
class Tried:
    """A candidate, and the highest rate at which it held the p99; where none did, the rate of the lowest p99."""

    candidate: Candidate
    trial: Trial


@dataclass(frozen=True)
class Search:
    """Measures candidates.

    Attributes:
        config: the Serve config.
        p99_ms: the limit to hold, under Poisson arrivals.
        images: that are sent.
        cores: that the server runs on.
        held: settings that the user holds, by name.
    """

    config: Mapping[str, Any]
    p99_ms: float
    images: Sequence[bytes]
    cores: int
    held: Mapping[str, Any] = field(default_factory=dict)

    def best(self, first: Candidate) -> list[Tried]:
        """Change one setting after the other while that holds more requests; every candidate, the best first.

        The best must hold its rate once more, for a minute in a fresh server.
        """
        best, tried = self._highest(first), list[Tried]()
        for name in HELD:
            if name in self.held:
                continue
            start = best
            for values in neighbours(start.candidate, name, self.cores):
                if best is start:
                    best = self._along(name, values, best, tried)
        return [self._promised(best), *tried]

    def _along(self, name: str, values: Iterable[Any], best: Tried, tried: list[Tried]) -> Tried:
        """Give a setting one value after the other while that holds more; add the other values to `tried`."""
        for value in values:
            found = self._challenge(replace(best.candidate, **{name: value}), best.trial)
            if not found.trial.is_better(best.trial):
                tried.append(found)
                break
            tried.append(best)
            best = found
        return best

    def _highest(self, candidate: Candidate) -> Tried:
        """Search the highest rate of a candidate."""
        print(candidate, flush=True)
        with serving(candidate.config(self.config), self.cores) as url:
            most = loaded(url, self.images, Closed(MOST_CLIENTS), SECONDS).requests_per_s
            return self._searched(candidate, url, max(1.0, 0.8 * most))

    def _challenge(self, candidate: Candidate, best: Trial) -> Tried:
        """Search the highest rate of a candidate that holds more requests than the best one; of another, try one rate.

        Where the best one does not hold the p99 either, its own rate is tried.
        """
        print(candidate, flush=True)
        rate = best.rate * (BETTER if best.holds else 1.0)
        with serving(candidate.config(self.config), self.cores) as url:
            trial = self._trial(url, rate)
            return self._searched(candidate, url, rate) if trial.holds else Tried(candidate, trial)

    def _searched(self, candidate: Candidate, url: str, first: float) -> Tried:
        trials: list[Trial] = []

        def at(rate: float) -> Trial:
            trials.append(self._trial(url, rate))
            return trials[-1]

        low = highest(at, first)
        return Tried(candidate, min(trials, key=lambda each: (each.rate != low, each.p99_ms)))

    def _trial(self, url: str, rate: float, seconds: float = SECONDS, seed: int = 0) -> Trial:
        row = loaded(url, self.images, Arrivals(rate, seed=seed), seconds)
        p99_ms = float(row.percentiles_ms["p99"]) if row.requests and not row.failed else math.inf
        trial = Trial(rate, float(row.requests_per_s), p99_ms <= self.p99_ms, p99_ms)
        print(f"  {rate:.4g}/s: {trial}", flush=True)
        return trial

    def _promised(self, tried: Tried) -> Tried:
        """Lower the rate until the p99 holds for a minute in a fresh server, under other arrivals."""
        if not tried.trial.holds:
            return tried
        print("For a minute, in a fresh server:", flush=True)
        with serving(tried.candidate.config(self.config), self.cores) as url:
            trial = confirmed(lambda rate: self._trial(url, rate, PROMISE_S, seed=1), tried.trial.rate)
        return Tried(tried.candidate, trial)

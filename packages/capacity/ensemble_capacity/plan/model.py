"""Predicts by operational analysis: which resource bounds the rate, and how long a request takes below the bound.

A batch of so many images has a CPU time and a duration. The cores, each thread pool, the ingress' event loop, HAProxy
and the batches in flight bound the rate. A closed loop takes the smaller of these bounds and of what its clients send.
An open loop waits as in a queue with fixed service times (M/D/1), whose service is a batch.

Sources: Denning and Buzen, The Operational Analysis of Queueing Network Models (1978); for the tail of M/D/1, Tijms, A
First Course in Stochastic Models (2003), section 9.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

import msgspec

from deployments.contract.names import INGRESS, TRANSFORMER
from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.plan.profile import FIGURES, MEDIAN, SHARES, Overhead, Profile, Served
from ensemble_capacity.plan.scenario import Scenario

# Calls in a row where every node is separate: to the transformer, the members, the combiner and the labeler.
HOPS = 4
P99 = SHARES.index(0.99)
# An open loop of more than this share of the highest rate falls behind.
KEEPS_UP = 0.97
# Predictions that lie in their interval, of all; and the least number of checks that an interval can be made from.
CONFIDENCE, LEAST_CHECKS = 0.95, 3
# The most that the ends of an interval should differ by, as a multiple of the lower one.
WIDE = 2.0


class Interval(NamedTuple):
    """The bounds of a figure."""

    low: float
    high: float

    @property
    def is_wide(self) -> bool:
        """Whether the bounds are too far apart to plan with."""
        return self.high > WIDE * self.low

    def __str__(self) -> str:
        """Write the bounds."""
        digits = 0 if self.low >= 100 else 1
        low, high = f"{self.low:,.{digits}f}", f"{self.high:,.{digits}f}"
        return "unknown" if math.isinf(self.high) else low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Prediction:
    """The effect of a load on a server; times are of answered requests.

    Attributes:
        load: in words.
        requests_per_s: that are answered.
        p50_ms: of the latency.
        p99_ms: of the latency; infinite where an open loop is more than the server answers.
        cpu: cores that the server uses, on average.
        memory_mb: of the server.
        images: per batch, on average.
        refused: share of the requests.
        limit: what bounds the rate; empty if nothing does.
        intervals: of the first three figures, by name.
    """

    load: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: float
    memory_mb: float
    images: float
    refused: float
    limit: str
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        """Its line in a table."""
        bounds = ["without end" if math.isinf(getattr(self, name)) else str(self.intervals[name]) for name in FIGURES]
        cpu, memory = f"{self.cpu:.2f}", f"{self.memory_mb:,.0f}"
        return [self.load, *bounds, cpu, memory, f"{self.images:.1f}", f"{self.refused:.1%}", self.limit]


HEADINGS = ("load", "requests/s", "p50, ms", "p99, ms", "cores used", "memory, MB", "images/batch", "refused", "full")


class Model:
    """A server in operation: what a batch costs, and what bounds the rate."""

    def __init__(self, scenario: Scenario, profile: Profile, cores: int, *, clients_here: bool) -> None:
        """Set the configuration, the durations, the number of cores, and whether clients compute on them, too."""
        self._scenario, self._profile = scenario, profile
        self.costs = overheads(scenario, profile)
        self.cores = cores
        self._client_ms = self.costs.client_ms if clients_here else 0.0
        self._most = max(0.1, (cores - self.costs.background) * self.costs.speed)
        self._replicas = scenario.count(INGRESS)
        self._decode = profile.curve(TRANSFORMER, scenario.decoding)
        self._members = [profile.curve(n, t, scenario.streams.get(n)) for n, t in scenario.members.items()]
        # The share of the images that each member gets.
        exits = scenario.exits if scenario.exits is not None else (0.0,) * (len(self._members) - 1)
        self._shares = list(accumulate((1 - each for each in exits), mul, initial=1.0))

    def _parts(self, images: float) -> list[tuple[float, float]]:
        """Calculate CPU time and duration of each member for a batch, seconds."""
        parts = []
        is_together = self._scenario.exits is None and len(self._members) > 1
        threads = self._scenario.members.values()
        for curve, share, given in zip(self._members, self._shares, threads, strict=True):
            # With more threads than were measured it has as many more streams, each as fast as the measured ones.
            wider = max(1, min(given // curve.threads, int(images * share)))
            cpu, wall, factor = curve.at(images * share / wider)
            slower = factor if is_together else 1.0
            parts.append((cpu * wider * slower, wall))
        return parts

    def work_s(self, images: float) -> float:
        """Calculate the CPU time of a batch in the server, seconds."""
        nodes = self._decode.at(images)[0] + sum(cpu for cpu, _ in self._parts(images))
        calls = len(self._scenario.separate) * _of(self.costs.node, images)
        return nodes + calls + _of(self.costs.ingress, images) + self.costs.proxy_ms * images / 1000

    def duration_s(self, images: float) -> float:
        """Calculate the time of a batch on a machine that does nothing else, seconds."""
        parts, scenario = self._parts(images), self._scenario
        if scenario.exits is not None:
            members = sum(wall for _, wall in parts)
        else:
            members = max(*(wall for _, wall in parts), sum(cpu for cpu, _ in parts) / self.cores)
        asked = [name for name in scenario.members if name in scenario.separate]
        in_a_row = len(asked) if scenario.exits is not None else min(1, len(asked))
        calls = len(set(scenario.separate) - set(scenario.members)) + in_a_row
        call = hop_ms(self._profile) / 1000 + _of(self.costs.node, images)
        return self._decode.at(images)[1] + members + _of(self.costs.ingress, images) + calls * call

    def bounds(self, images: float) -> dict[str, float]:
        """Calculate each resource's highest rate in batches of `images` images, requests per second."""
        scenario, costs = self._scenario, self.costs
        loop, call = _of(costs.ingress, images) / images, _of(costs.node, images) / images
        in_flight = scenario.ingress.max_concurrent_batches * self._replicas
        found = {
            "cores": self._most / (self.work_s(images) / images + self._client_ms / 1000),
            "event loop of the ingress": self._replicas / loop if loop else math.inf,
            "HAProxy": 1000 / costs.proxy_ms if costs.proxy_ms else math.inf,
            "batches in flight": in_flight * images / self.duration_s(images),
        }
        for name, (cpu, _) in zip(scenario.members, self._parts(images), strict=True):
            is_separate = name in scenario.separate
            count = scenario.count(name if is_separate else INGRESS)
            if cpu:
                found[f"threads of {name}"] = count * scenario.members[name] * images / cpu
            if is_separate and call:
                found[f"event loop of {name}"] = count / call
        return found

    def bound(self, images: float) -> tuple[float, str]:
        """Find the highest rate in batches of `images` images, and the resource that limits it."""
        name, rate = min(self.bounds(images).items(), key=lambda each: each[1])
        return rate, name

    def delay_s(self, share: int) -> float:
        """Return how long nothing computes for a request, at a position of `SHARES`, seconds."""
        return self.costs.delays_ms[share] / 1000

    def closed(self, clients: int) -> tuple[float, float, float, float]:
        """Predict rate, p50 and p99, seconds, and images per batch of a closed loop, whose images form batches."""
        most = self._scenario.ingress.max_batch_size
        images = min(float(most), max(1.0, clients / self._replicas))
        wait = self._scenario.ingress.batch_wait_ms / 1000 if images < most else 0.0
        alone = self.delay_s(MEDIAN) + self.duration_s(images) + wait
        rate = min(clients / alone, self.bound(images)[0])
        # By Little's law.
        took = clients / rate
        return rate, took, took + self.delay_s(P99) - self.delay_s(MEDIAN), images

    def open(self, rate: float) -> tuple[float, float, float, float]:
        """Predict rate, p50 and p99, seconds, and images per batch of Poisson arrivals."""
        ingress = self._scenario.ingress
        lanes = self._replicas * ingress.max_concurrent_batches
        images, wait = 1.0, ingress.batch_wait_ms / 1000
        for _ in range(20):
            busy = min(1.0, rate / self.bound(images)[0])
            arrive = rate / lanes * (self.duration_s(images) / (1 - 0.5 * busy) + wait)
            # The mean with the last guess ends the swinging between two sizes.
            images = (images + min(float(ingress.max_batch_size), max(1.0, arrive))) / 2
        most = self.bound(ingress.max_batch_size)[0]
        if rate > KEEPS_UP * most:
            queue = min(rate, ingress.max_in_flight) / most
            return min(rate, most), queue, math.inf, float(ingress.max_batch_size)
        busy = rate / max(most, self.bound(images)[0])
        service = max(self.duration_s(images), images * lanes / self.bound(images)[0] * busy)
        p50 = self.delay_s(MEDIAN) + service * (1 + busy / 2) + wait / 2
        return rate, p50, self.delay_s(P99) + service * (1 + tail(busy)) + wait, images


def _of(overhead: Overhead, images: float) -> float:
    return (overhead.batch_ms + overhead.image_ms * images) / 1000


def tail(busy: float, share: float = 0.99) -> float:
    """Calculate the wait in M/D/1 that this share of the requests does not exceed, in service times.

    P(W > t) = a exp(-d t), where d solves busy (exp(d) - 1) = d.
    """
    if busy <= 1 - share:
        return 0.0
    low, high = 1e-9, 50.0
    for _ in range(60):
        decay = (low + high) / 2
        low, high = (decay, high) if busy * math.expm1(decay) < decay else (low, decay)
    amplitude = (1 - busy) / (busy * math.exp(decay) - 1)
    return max(0.0, math.log(amplitude / (1 - share)) / decay)


def hop_ms(profile: Profile) -> float:
    """Calculate the wait of a call to a separate node: a part of the delay that separate nodes add to one client's."""
    inline, separate = (profile.served[placement].delays_ms[MEDIAN] for placement in ("inline", "separate"))
    return max(0.0, separate - inline) / HOPS


def overheads(scenario: Scenario, profile: Profile) -> Served:
    """Mix the costs of the two placements that were measured, by the share of separate nodes.

    What a request waits for in calls to separate nodes is no part of its delays; see `hop_ms`.
    """
    inline, separate = profile.served["inline"], profile.served["separate"]
    share, hops = len(scenario.separate) / len(scenario.placements), HOPS * hop_ms(profile)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    names = ("proxy_ms", "client_ms", "background", "ingress_mb", "rest_mb", "speed")
    mixed: dict[str, Any] = {name: between(getattr(inline, name), getattr(separate, name)) for name in names}
    delays = zip(inline.delays_ms, separate.delays_ms, strict=True)
    mixed["delays_ms"] = tuple(between(one, max(0.0, other - hops)) for one, other in delays)
    low, high = map(msgspec.structs.astuple, (inline.ingress, separate.ingress))
    return msgspec.structs.replace(separate, ingress=Overhead(*map(between, low, high)), **mixed)


def predict(
    scenario: Scenario, profile: Profile, load: Mode, cores: int | None = None, *, clients_here: bool = False
) -> Prediction:
    """Predict what a load does to a server.

    Args:
        scenario: of the server.
        profile: the durations.
        load: clients of a closed loop, or Poisson arrivals.
        cores: of the machine; None for as many as were profiled.
        clients_here: whether the clients compute on these cores, too.
    """
    model = Model(scenario, profile, cores or profile.cores, clients_here=clients_here)
    is_closed = isinstance(load, Closed)
    rate, p50, p99, images = model.closed(load.concurrency) if isinstance(load, Closed) else model.open(load.rate)
    values = dict(zip(FIGURES, (rate, 1000 * p50, 1000 * p99), strict=True))
    intervals = {}
    for name, value in values.items():
        ratios = [each.ratios[name] for each in profile.checks if each.is_closed == is_closed and name in each.ratios]
        values[name], intervals[name] = bounded(value, ratios)
    if isinstance(load, Arrivals) and math.isfinite(p99):
        # A server that keeps up answers what it is sent.
        values["requests_per_s"], intervals["requests_per_s"] = rate, Interval(rate, rate)
    highest, name = model.bound(images)
    used = model.work_s(images) / images * rate + model.costs.background
    return Prediction(
        f"{load.concurrency} at a time" if isinstance(load, Closed) else f"{load.rate:.4g}/s",
        **values,
        cpu=used,
        memory_mb=memory_mb(scenario, model.costs),
        images=images,
        refused=0.0 if is_closed else max(0.0, 1 - rate / load.rate) if isinstance(load, Arrivals) else 0.0,
        limit=name if rate >= KEEPS_UP * highest else "",
        intervals=intervals,
    )


def bounded(value: float, ratios: Sequence[float]) -> tuple[float, Interval]:
    """Correct a value by the mean of measured ratios, and bound the next measurement of it.

    The interval is the prediction interval of a log-normal ratio: mean -/+ t(n - 1) s sqrt(1 + 1/n).
    """
    if len(ratios) < LEAST_CHECKS:
        return value, Interval(0.0, math.inf)
    logs = [math.log(max(each, 1e-3)) for each in ratios]
    half = student(len(logs) - 1) * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    middle = value * math.exp(fmean(logs))
    return middle, Interval(middle * math.exp(-half), middle * math.exp(half))


def student(freedom: int) -> float:
    """Calculate Student's two-sided quantile at `CONFIDENCE`, by the expansion of Fisher and Cornish."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def memory_mb(scenario: Scenario, costs: Served) -> float:
    """Sum the memory of every server, of the ingress' replicas and of the separate nodes' replicas."""
    nodes = sum(scenario.count(name) for name in scenario.separate)
    return costs.rest_mb + scenario.count(INGRESS) * costs.ingress_mb + nodes * costs.node_mb

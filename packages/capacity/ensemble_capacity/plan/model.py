"""Predicts by measured closed loops, for other numbers of clients, for Poisson arrivals and for other cores.

A closed loop of n clients shows the rate and the latencies of a server with n requests in it. Between two measured
loops they are interpolated. Poisson arrivals are a queue whose rate of service, with n requests in it, is the rate of
that loop (a flow-equivalent server); a request that finds n others takes as long as in the loop of n + 1 clients. More
cores are taken as more servers of this kind, which share the requests evenly.

Source: Lazowska, Zahorjan, Graham and Sevcik, Quantitative System Performance (1984), chapters 8 and 20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ensemble_capacity.load.load import Closed, Mode
from ensemble_capacity.load.measure import PERCENTILES

# The shares of a loop's requests whose latency is kept, and the shares at which a mixture of loops is sampled.
SHARES = (0.0, *(percent / 100 for percent in PERCENTILES), 1.0)
SAMPLED = (np.arange(200) + 0.5) / 200
# The figures of a prediction that have an interval.
FIGURES = ("requests_per_s", "p50_ms", "p99_ms")
# A server that refuses a smaller share keeps up; a number of requests that is present so seldom does not matter.
KEEPS_UP, SELDOM = 0.001, 1e-9
# Predictions that lie in their interval, of all; and the least number of checks that an interval can be made from.
CONFIDENCE, LEAST_CHECKS = 0.95, 3
# The most that the ends of an interval should differ by, as a multiple of the lower one.
WIDE = 2.0

Floats = NDArray[np.float64]


class Loop(msgspec.Struct, frozen=True):
    """A measured closed loop: the latencies at `SHARES`, and the server's CPU time per request."""

    clients: int
    requests_per_s: float
    latency_ms: tuple[float, ...]
    cpu_ms: float


class Check(msgspec.Struct, frozen=True):
    """A load that was predicted and measured.

    Attributes:
        is_closed: whether it was a closed loop.
        load: its clients, or the requests per second that were sent.
        ratios: the measured value as a multiple of the predicted one, by figure.
    """

    is_closed: bool
    load: float
    ratios: dict[str, float]


class Profile(msgspec.Struct, frozen=True):
    """The measurements of a configuration.

    Attributes:
        digest: of what they depend on.
        machine: its facts, in words.
        cores: that could be used.
        most_in_flight: requests at all replicas of the ingress, of which the server refuses more.
        loops: by their clients, ascending.
        replicas_mb: memory of all replicas.
        rest_mb: memory of everything else of the server.
        checks: how far measured loads were from their predictions.
    """

    digest: str
    machine: dict[str, str]
    cores: int
    most_in_flight: int
    loops: tuple[Loop, ...]
    replicas_mb: float
    rest_mb: float
    checks: tuple[Check, ...] = ()

    def checked(self, *, closed: bool) -> list[Check]:
        """Select the checks by closed, or by open, loops."""
        return [each for each in self.checks if each.is_closed == closed]

    def reach(self, *, closed: bool) -> float:
        """Find the highest load that was checked."""
        return max((each.load for each in self.checked(closed=closed)), default=0.0)


class Interval(NamedTuple):
    """The bounds of a figure."""

    low: float
    high: float

    @property
    def is_unknown(self) -> bool:
        """Whether nothing bounds the figure."""
        return math.isinf(self.high)

    @property
    def is_wide(self) -> bool:
        """Whether the bounds are too far apart to plan with."""
        return not self.is_unknown and self.high > WIDE * self.low

    def __str__(self) -> str:
        """Write the bounds."""
        digits = 0 if self.low >= 100 else 1
        low, high = f"{self.low:,.{digits}f}", f"{self.high:,.{digits}f}"
        return "unknown" if self.is_unknown else low if low == high else f"{low} to {high}"


UNKNOWN = Interval(0.0, math.inf)


@dataclass(frozen=True)
class Prediction:
    """The effect of a load on a server; times are of answered requests.

    Attributes:
        load: in words.
        requests_per_s: that are answered.
        p50_ms: of the latency.
        p99_ms: of the latency.
        cpu: cores that the server uses, on average.
        memory_mb: of the server.
        refused: share of the requests.
        intervals: of the first three figures, by name.
    """

    load: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: float
    memory_mb: float
    refused: float
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        """Its line in a table."""
        bounds = [str(self.intervals[name]) for name in FIGURES]
        return [self.load, *bounds, f"{self.cpu:.2f}", f"{self.memory_mb:,.0f}", f"{self.refused:.1%}"]


HEADINGS = ("load", "requests/s", "p50, ms", "p99, ms", "cores used", "memory, MB", "refused")


class Outcome(NamedTuple):
    """The rate, the median and the 99th percentile of the latency, milliseconds, and the refused share."""

    rate: float
    p50_ms: float
    p99_ms: float
    refused: float = 0.0


class Server:
    """A server by its measured loops."""

    def __init__(self, profile: Profile) -> None:
        loops = profile.loops
        self._most_in_flight = profile.most_in_flight
        self._clients = np.log([loop.clients for loop in loops])
        measured = np.array([loop.requests_per_s for loop in loops])
        # More clients get no less; what disturbs a measurement makes it slower, never faster.
        self._rates = np.maximum.accumulate(measured)
        # By Little's law a request takes clients / rate on average.
        means = 1000 * np.array([loop.clients for loop in loops]) / measured
        self._shapes = np.array([loop.latency_ms for loop in loops]) / means[:, None]
        self._cpu_ms = np.array([loop.cpu_ms for loop in loops])

    def rates(self, clients: Floats) -> Floats:
        """Interpolate the rates of closed loops, requests per second."""
        return np.asarray(np.interp(np.log(clients), self._clients, self._rates))

    def latencies(self, clients: Floats) -> Floats:
        """Interpolate the latencies of closed loops at `SHARES`, milliseconds, [loops,shares]."""
        at, means = np.log(clients), 1000 * clients / self.rates(clients)
        shapes = [np.interp(at, self._clients, shape) for shape in self._shapes.T]
        return np.stack(shapes, axis=1) * means[:, None]

    def cpu_ms(self, rate: float) -> float:
        """Interpolate the CPU time of a request at a rate."""
        return float(np.interp(rate, self._rates, self._cpu_ms))

    @property
    def most(self) -> float:
        """The highest rate, requests per second."""
        return float(self._rates[-1])

    def closed(self, clients: float) -> Outcome:
        """Predict a closed loop; less than a client sends that part of the requests of one client."""
        loop = np.array([max(1.0, clients)])
        p50, p99 = np.interp((0.5, 0.99), SHARES, self.latencies(loop)[0])
        return Outcome(float(self.rates(loop)[0]) * min(1.0, clients), float(p50), float(p99))

    def open(self, rate: float) -> Outcome:
        """Predict Poisson arrivals."""
        present = np.arange(1.0, self._most_in_flight + 1)
        # In equilibrium as many requests come as leave, at each number of requests that are present.
        logs = np.concatenate([[0.0], np.cumsum(math.log(rate) - np.log(self.rates(present)))])
        shares = np.exp(logs - logs.max())
        shares /= shares.sum()
        refused = float(shares[-1])
        # A request finds one less; of the numbers that it seldom finds none is a part of the mixture.
        found = present[shares[:-1] > SELDOM]
        samples = np.stack([np.interp(SAMPLED, SHARES, each) for each in self.latencies(found)])
        order = np.argsort(samples, axis=None)
        weights = np.repeat(shares[:-1][shares[:-1] > SELDOM], len(SAMPLED))
        reached = np.cumsum(weights[order]) / weights.sum()
        p50, p99 = samples.ravel()[order[np.searchsorted(reached, (0.5, 0.99))]]
        return Outcome(rate * (1 - refused), float(p50), float(p99), refused)


def predict(profile: Profile, load: Mode, cores: int | None = None) -> Prediction:
    """Predict what a load does to a server.

    Args:
        profile: of the configuration.
        load: clients of a closed loop, or Poisson arrivals.
        cores: of the machine; None for as many as were profiled.
    """
    servers, server = (cores or profile.cores) / profile.cores, Server(profile)
    is_closed = isinstance(load, Closed)
    share = (load.concurrency if isinstance(load, Closed) else load.rate) / servers
    found = server.closed(share) if is_closed else server.open(share)
    values, intervals = dict[str, float](), dict[str, Interval]()
    values["requests_per_s"], intervals["requests_per_s"] = answered(profile, load, server, found, servers)
    for name, value in (("p50_ms", found.p50_ms), ("p99_ms", found.p99_ms)):
        ratios = [each.ratios[name] for each in profile.checked(closed=is_closed)]
        values[name], interval = bounded(value, ratios)
        # Latencies rise steeply near the capacity, so that checks of lower loads do not bound them.
        intervals[name] = UNKNOWN if share > profile.reach(closed=is_closed) else interval
    return Prediction(
        f"{load.concurrency} at a time" if isinstance(load, Closed) else f"{load.rate:.4g}/s",
        **values,
        cpu=servers * found.rate * server.cpu_ms(found.rate) / 1000,
        memory_mb=servers * profile.replicas_mb + profile.rest_mb,
        refused=found.refused,
        intervals=intervals,
    )


def answered(profile: Profile, load: Mode, server: Server, found: Outcome, servers: float) -> tuple[float, Interval]:
    """Correct and bound the answered rate, by closed checks: the rate of an open check is the rate that was sent."""
    ratios = [each.ratios["requests_per_s"] for each in profile.checked(closed=True)]
    middle, interval = bounded(servers * found.rate, ratios)
    if isinstance(load, Closed):
        return middle, interval
    _, capacity = bounded(servers * server.most, ratios)
    if found.refused < KEEPS_UP and load.rate < capacity.low:
        # A server that keeps up answers what it is sent.
        return load.rate, Interval(load.rate, load.rate)
    return min(load.rate, middle), Interval(min(load.rate, interval.low), min(load.rate, interval.high))


def bounded(value: float, ratios: Sequence[float]) -> tuple[float, Interval]:
    """Correct a value by the mean of measured ratios, and bound the next measurement of it.

    The interval is the prediction interval of a log-normal ratio: mean -/+ t(n - 1) s sqrt(1 + 1/n).
    """
    if len(ratios) < LEAST_CHECKS:
        return value, UNKNOWN
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

"""Predicts closed loops for other numbers of clients, and for other cores, from measured closed loops.

A closed loop of n clients shows the rate and the latencies of a server with n requests in it. Between two measured
loops the rate and the ratio of p50 and p99 to the mean are interpolated. More cores are taken as more servers of this
kind, which share the requests evenly.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec
import numpy as np

# The figures of a prediction that have an interval.
FIGURES = ("requests_per_s", "p50_ms", "p99_ms")
# Student's two-sided quantiles at 95 %, by the number of checks, which is one more than their degrees of freedom.
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}
# The most that the ends of an interval should differ by, as a multiple of the lower one.
WIDE = 2.0


class Loop(msgspec.Struct, frozen=True):
    """A measured closed loop; times are milliseconds, and `cpu_ms` is the server's CPU time per request."""

    clients: int
    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


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
        return "unknown" if self.is_unknown else f"{self.low:,.{digits}f} to {self.high:,.{digits}f}"


UNKNOWN = Interval(0.0, math.inf)


class Prediction(msgspec.Struct, frozen=True):
    """The effect of a closed loop on a server.

    Attributes:
        clients: of the loop.
        cores: of the machine.
        requests_per_s: that are answered.
        p50_ms: of the latency.
        p99_ms: of the latency.
        cpu: cores that the server uses, on average.
        memory_mb: of the server.
        intervals: of the first three figures, by name.
    """

    clients: int
    cores: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: float
    memory_mb: float
    intervals: dict[str, Interval]


class Profile(msgspec.Struct, frozen=True):
    """The measurements of a configuration.

    Attributes:
        cores: that could be used.
        loops: by their clients, ascending.
        checks: further loops, whose distance to their predictions bounds other predictions.
        replicas_mb: memory of all replicas.
        rest_mb: memory of everything else of the server.
    """

    cores: int
    loops: tuple[Loop, ...]
    checks: tuple[Loop, ...]
    replicas_mb: float
    rest_mb: float

    @property
    def reach(self) -> int:
        """The clients of the longest checked loop."""
        return max((each.clients for each in self.checks), default=0)

    def ratios(self, name: str) -> list[float]:
        """Divide the measured values of a figure by the predicted ones."""
        return [getattr(each, name) / getattr(self.interpolated(each.clients), name) for each in self.checks]

    def interpolated(self, clients: float) -> Loop:
        """Interpolate a closed loop; less than a client sends that part of the requests of one client."""
        loops = self.loops
        known = np.array([each.clients for each in loops])
        rates = np.array([each.requests_per_s for each in loops])

        def at(values: Sequence[float]) -> float:
            return float(np.interp(math.log(max(1.0, clients)), np.log(known), values))

        # More clients get no less; what disturbs a measurement makes it slower, never faster.
        rate = at(np.maximum.accumulate(rates).tolist())
        # By Little's law a request takes clients / rate on average.
        p50, p99 = (
            at([each * rate / count for each, rate, count in zip(times, rates, known, strict=True)])
            for times in ([each.p50_ms for each in loops], [each.p99_ms for each in loops])
        )
        mean = max(1.0, clients) / rate
        return Loop(0, 0, rate * min(1.0, clients), p50 * mean, p99 * mean, at([each.cpu_ms for each in loops]))


def predict(profile: Profile, clients: int, cores: int) -> Prediction:
    """Predict a closed loop on a number of cores."""
    servers = cores / profile.cores
    found = profile.interpolated(clients / servers)
    rate, rates = bounded(servers * found.requests_per_s, profile.ratios("requests_per_s"))
    p50, p50s = bounded(found.p50_ms, profile.ratios("p50_ms"))
    p99, p99s = bounded(found.p99_ms, profile.ratios("p99_ms"))
    # Latencies rise steeply near the capacity, so that checks of shorter loops do not bound them.
    if clients / servers > profile.reach:
        p50s = p99s = UNKNOWN
    return Prediction(
        clients,
        cores,
        rate,
        p50,
        p99,
        cpu=servers * found.requests_per_s * found.cpu_ms / 1000,
        memory_mb=servers * profile.replicas_mb + profile.rest_mb,
        intervals=dict(zip(FIGURES, (rates, p50s, p99s), strict=True)),
    )


def bounded(value: float, ratios: Sequence[float]) -> tuple[float, Interval]:
    """Correct a value by the mean of measured ratios, and bound the next measurement of it.

    The interval is the prediction interval of a log-normal ratio: mean -/+ t(n - 1) s sqrt(1 + 1/n).
    """
    if len(ratios) not in STUDENT:
        return value, UNKNOWN
    logs = [math.log(each) for each in ratios]
    half = STUDENT[len(logs)] * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    middle = value * math.exp(fmean(logs))
    return middle, Interval(middle * math.exp(-half), middle * math.exp(half))

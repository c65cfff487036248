"""How long a load is measured: for a fixed time, or in windows until they agree, as perf_analyzer does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ensemble_capacity.load.records import Records, between, latency_ms, ok, quantile


@dataclass(frozen=True)
class Duration:
    """How long a load is measured, seconds, after a warm-up; without `seconds`, in windows until they agree.

    Attributes:
        tolerance: by which share the largest of the last windows may exceed the smallest, in rate and in latency.
        agreeing: so many last windows are looked at, and are the result.
        trials: windows at most.
        percentile: of the latency that is looked at; None for the mean.
        limit_ms: of that latency: there are no more windows when the last ones have all exceeded it.
    """

    warm_up_s: float = 1.0
    seconds: float | None = None
    window_s: float = 5.0
    tolerance: float = 0.1
    agreeing: int = 3
    trials: int = 10
    percentile: float | None = None
    limit_ms: float | None = None

    @property
    def longest_s(self) -> float:
        """The most that it takes, seconds."""
        return self.warm_up_s + (self.seconds if self.seconds is not None else self.trials * self.window_s)


def window(found: Records, begin: float, end: float, percentile: float | None) -> tuple[float, float]:
    """Rate and latency, milliseconds, of the requests that succeeded in a window."""
    done = between(found, "done", begin, end)
    latencies = latency_ms(done[ok(done)])
    if not len(latencies):
        return 0.0, float("inf")
    latency = float(latencies.mean()) if percentile is None else quantile(latencies, percentile)
    return len(latencies) / (end - begin), latency


def agree(windows: Sequence[tuple[float, float]], duration: Duration) -> bool:
    """Whether the last windows are as alike as perf_analyzer wants them: by rate and by latency."""
    last = windows[-duration.agreeing :]
    if len(last) < duration.agreeing or not all(rate for rate, _ in last):
        return False
    return all(max(each) <= (1 + duration.tolerance) * min(each) for each in zip(*last, strict=True))


def is_beyond(windows: Sequence[tuple[float, float]], duration: Duration) -> bool:
    """Whether the last windows have all exceeded the limit: more of them would change nothing."""
    last = windows[-duration.agreeing :]
    limit = duration.limit_ms
    return limit is not None and len(last) == duration.agreeing and all(latency > limit for _, latency in last)

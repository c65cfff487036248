"""Measures a load, and makes its figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from tqdm import tqdm

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Mode, Target
from ensemble_capacity.load.machine import Figures, Processes
from ensemble_capacity.load.records import (
    DEGRADED,
    RIGHT,
    SHED,
    Records,
    between,
    late_ms,
    latency_ms,
    ok,
    outcomes,
    quantile,
    with_failures,
)

# A process that works so large a part of the time is what limits the load.
BUSY = 0.85
# Requests that leave later than this, at the 99th percentile, and than this share of the latency, distort it.
LATE_MS, LATE_SHARE = 1.0, 0.1
PERCENTILES = (50, 90, 95, 99)
# The share by which the largest third of a load may exceed the smallest.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Duration:
    """How long a load is measured, seconds, after a warm-up; and the percentile of an objective, None without one."""

    warm_up_s: float = 1.0
    seconds: float = 15.0
    percentile: float | None = None


def is_stable(found: Records, begin: float, end: float) -> bool:
    """Tell whether the thirds of a load are as alike as perf_analyzer wants windows: by rate and by mean latency."""
    third = (end - begin) / 3
    windows = [window(found, begin + part * third, begin + (part + 1) * third) for part in range(3)]
    return all(0 < max(each) <= (1 + TOLERANCE) * min(each) for each in zip(*windows, strict=True))


def window(found: Records, begin: float, end: float) -> tuple[float, float]:
    """Calculate rate and mean latency, milliseconds, of the requests that succeeded in a window."""
    done = between(found, "done", begin, end)
    latencies = latency_ms(done[ok(done)])
    return (len(latencies) / (end - begin), float(latencies.mean())) if len(latencies) else (0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """The figures of a load. Times count from when each request was due; failed requests are left out.

    Attributes:
        mode: `concurrency` or `rate`.
        value: clients of a closed loop, or requests per second that were due, on average.
        seconds: for how long it was measured.
        stable: whether the thirds of the time were alike.
        requests: that succeeded, as in the two rates.
        outcomes: requests by status.
        first_error: what the first failed request got.
        mean_ms: of the latency, as the three after it.
        slo_percentile_ms: the percentile of the objective, a failed request counted as infinitely late; or None.
        late_p99_ms: how much later than due requests left this machine, 99th percentile.
        client_cpu_ms: CPU time of the load generator per request.
        client: `ok`; or why the client, and not the server, may have been measured: `busy`, and how much of the time
            its process worked, or `late`, and how late requests left.
        top1: share of right answers, percent; None without labels.
        degraded: share of answers that lack a member.
        shed: share of answers that fewer members made because of the load.
    """

    mode: str
    value: float
    batch: int
    seconds: float
    stable: bool
    requests: int
    failed: int
    outcomes: dict[str, int]
    first_error: str
    requests_per_s: float
    images_per_s: float
    mean_ms: float
    percentiles_ms: dict[str, float]
    max_ms: float
    slo_percentile_ms: float | None
    late_p99_ms: float
    client_cpu_ms: float
    client: str
    top1: float | None
    degraded: float
    shed: float
    min_ms: float = float("nan")
    server: Figures = field(default_factory=Figures)

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.value:.4g}{' at a time' if self.mode == 'concurrency' else '/s'}"

    def per_request(self, used: float) -> float:
        """Divide the CPU time while the server was watched by the requests."""
        expected = self.requests_per_s * self.server.seconds
        return used / expected if expected else float("nan")


def row(
    found: Records,
    begin: float,
    end: float,
    target: Target,
    mode: Mode,
    *,
    percentile: float | None = None,
    cpu_s: float = 0.0,
    **more: Any,
) -> Row:
    """Make the row of a load, by the requests that were due between two times, seconds of `time.perf_counter`.

    `cpu_s` is the CPU time of the load generator meanwhile, seconds, and `percentile` the objective's.
    """
    due = between(found, "due", begin, end)
    well = due[ok(due)]
    # What was due before, and failed only then, is counted, too: a server that hangs has no other requests.
    ended = between(found, "done", begin, np.inf)
    due = np.concatenate([ended[(ended["due"] < begin) & ~ok(ended)], due])
    latencies, late = latency_ms(well), quantile(late_ms(due), 99)
    # An open loop's rate is what came back meanwhile; of what was due then, all comes back in the end.
    done = between(found, "done", begin, end)
    rate = np.count_nonzero(ok(done)) / (end - begin)
    return Row(
        mode="concurrency" if isinstance(mode, Closed) else "rate",
        value=mode.concurrency if isinstance(mode, Closed) else mode.rate,
        batch=target.batch,
        seconds=end - begin,
        requests=len(well),
        failed=len(due) - len(well),
        outcomes=outcomes(due),
        requests_per_s=rate,
        images_per_s=rate * target.batch,
        mean_ms=float(latencies.mean()) if len(well) else float("nan"),
        percentiles_ms={f"p{percent}": quantile(latencies, percent) for percent in PERCENTILES},
        max_ms=float(latencies.max()) if len(well) else float("nan"),
        min_ms=float(latencies.min()) if len(well) else float("nan"),
        slo_percentile_ms=None if percentile is None else quantile(with_failures(due), percentile),
        late_p99_ms=late,
        client_cpu_ms=1000 * cpu_s / max(1, len(done)),
        client=_client(cpu_s / (end - begin), late, quantile(latencies, 99)),
        top1=100 * _share(well, RIGHT) if target.labels else None,
        degraded=_share(well, DEGRADED),
        shed=_share(well, SHED),
        **more,
    )


def _share(found: Records, flag: int) -> float:
    return float(np.mean(found["flags"] & flag > 0)) if len(found) else 0.0


def _client(busy: float, late: float, p99: float) -> str:
    if busy >= BUSY:
        return f"busy: {busy:.0%}"
    if late > LATE_MS and not late <= LATE_SHARE * p99:
        return f"late: p99 {late:.1f} ms"
    return "ok"


def _bar(seconds: float, hidden: bool) -> tqdm[NoReturn]:
    form = "{percentage:3.0f}%|{bar}| {elapsed} of {total:.0f} s"
    return tqdm(total=seconds, bar_format=form, leave=False, mininterval=0.5, disable=hidden or None)


def measure(target: Target, mode: Mode, duration: Duration, *, watched: bool = False) -> Row:
    """Load a server; if it is `watched`, show the time, and count what it uses meanwhile.

    Raises:
        ScriptError: the load generator did not start.
    """
    server = Processes.of(target.url) if watched else Processes(None)
    length = duration.warm_up_s + duration.seconds
    with Generator(target, mode) as generator, _bar(length, not watched) as bar:

        def tick() -> None:
            bar.update(min(time.perf_counter() - generator.began, length) - bar.n)

        generator.run(duration.warm_up_s, tick)
        server.begin()
        generator.run(length, tick)
        figures = server.figures()
        begin = generator.began + duration.warm_up_s
        end = min(begin + duration.seconds, time.perf_counter())
    found = generator.records()
    return row(
        found,
        begin,
        end,
        target,
        mode,
        percentile=duration.percentile,
        cpu_s=generator.cpu_s * (end - begin) / (end - generator.began),
        stable=is_stable(found, begin, end),
        first_error=generator.first_error,
        server=figures,
    )

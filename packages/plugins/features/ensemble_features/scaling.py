"""A policy for Serve's autoscaling: as many replicas as a p99 needs."""

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.serve.config import AutoscalingContext

from deployments.contract.counting import TaggedCounter
from deployments.contract.errors import ConfigurationError
from deployments.observe.metrics import report_counters


@dataclass(frozen=True)
class Load:
    """The load of a deployment.

    Attributes:
        rate: calls that arrive, per second.
        alone_s: how long a call takes that does not wait, seconds.
        spread: the variance of these durations, divided by the square of their mean: 0 where all take equally long,
            1 where they are exponential.
    """

    rate: float
    alone_s: float
    spread: float = 1.0

    @property
    def busy(self) -> float:
        """How many calls are worked on at a time, on average, if none waits."""
        return self.rate * self.alone_s


def waiting_longer(load: Load, servers: int, wait_s: float) -> float:
    """Return the share of calls that wait longer than a time for a free one of `servers` servers.

    Whether a call waits is Erlang's C formula, which takes durations to be exponential. A model's vary less, and
    then a queue is gone sooner: the tail falls faster, by the factor of Allen and Cunneen's approximation (Allen,
    Probability, Statistics and Queueing Theory, 1990).
    """
    busy = load.busy
    if busy >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        # Erlang's B formula, by its recursion.
        blocked = busy * blocked / (n + busy * blocked)
    queued = blocked / (1 - busy / servers * (1 - blocked))
    return queued * math.exp(-2 / (1 + load.spread) * (servers - busy) * wait_s / load.alone_s)


def needed(load: Load, target_s: float, late: float, at_a_time: int, most: int) -> int:
    """Return the least number of replicas with which at most a share of the calls takes longer than a target.

    Args:
        load: the work to do.
        target_s: of a call, with its wait, seconds.
        late: the share that may take longer.
        at_a_time: calls that a replica works on at a time.
        most: replicas; the result where no number up to it is enough.
    """
    if not load.rate or not load.alone_s:
        return 1
    # A target that even a call alone misses: then as few as possible wait.
    wait_s = max(0.0, target_s - load.alone_s)
    first = max(1, math.ceil(load.busy / at_a_time))
    for replicas in range(first, most):
        if waiting_longer(load, replicas * at_a_time, wait_s) <= late:
            return replicas
    return most


logger = logging.getLogger("ray.serve")

LATE = 0.01
# Calls that have piled up are to be done within this time, besides those that come.
CATCH_UP_S = 1.0
# A burst is looked for in each of these last seconds. So many standard deviations of their calls may be chance, and are
# not counted.
RECENT_S, CERTAIN = (1.0, 2.0, 4.0), 2.5
# What a replica reports besides the calls that have arrived.
REPORTED = ("alone_s", "alone_calls", "spread", "running_requests")
Series = Mapping[Any, Any]


class LatencyTarget:
    """Grows at once to what a p99 needs, and shrinks to the most that the last while needed."""

    def __init__(self, p99_ms: float, keep_s: float = 60.0, at_a_time: int = 1) -> None:
        """Set the promised latency.

        Args:
            p99_ms: 99 % of the deployment's calls take at most so long, milliseconds.
            keep_s: how long replicas stay that are needed no more, seconds.
            at_a_time: calls that a replica works on at a time, without any of them taking longer.

        Raises:
            ConfigurationError: one of them is not positive, or `at_a_time` is below 1.
        """
        for name, value in (("p99_ms", p99_ms), ("keep_s", keep_s), ("at_a_time", at_a_time)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigurationError(f"policy_kwargs.{name}: must be a number above 0; got {value!r}")
        if at_a_time < 1:
            raise ConfigurationError(f"policy_kwargs.at_a_time: must be a number above 0, at least 1; got {at_a_time}")
        self._target_s, self._keep_s, self._at_a_time = p99_ms / 1000, keep_s, int(at_a_time)
        # What was needed, by time; of those that a later one reaches, none is kept.
        self._needed: deque[tuple[float, int]] = deque()
        self._held: int | None = None
        self._said: set[str] = set()
        self._decisions: TaggedCounter | None = None

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Decide the number of replicas; there is no state for Serve."""
        name = ctx.deployment_name
        found = measured(ctx.raw_metrics or {})
        if found is None:
            self._warn(name, "unreported", "no replica reports its calls, so the number of replicas stays")
            return ctx.target_num_replicas, {}
        arriving, piled_up = found
        load = replace(arriving, rate=arriving.rate + piled_up / CATCH_UP_S)
        most = max(1, ctx.capacity_adjusted_max_replicas)
        wanted = needed(load, self._target_s, LATE, self._at_a_time, most)
        held = self._most_of_late(ctx.current_time or 0.0, max(wanted, ctx.capacity_adjusted_min_replicas))
        # Serve may follow later, or not at all.
        is_known, self._held = held == self._held, held
        if held != ctx.target_num_replicas and not is_known:
            grows = held > ctx.target_num_replicas
            by_rate = needed(arriving, self._target_s, LATE, self._at_a_time, most)
            self._count(name, "shrink" if not grows else "rate" if by_rate == wanted else "backlog")
            logger.info(
                f"{name}: {held} replicas instead of {ctx.target_num_replicas}; {arriving.rate:.1f} calls/s of "
                f"{1000 * load.alone_s:.1f} ms and {piled_up:.0f} that piled up need {wanted} for a p99 of "
                f"{1000 * self._target_s:g} ms"
            )
        if load.alone_s >= self._target_s:
            self._warn(name, "unreachable", "even alone a call takes longer than the p99, which can't be held")
        return held, {}

    def _most_of_late(self, now: float, wanted: int) -> int:
        """Note how many replicas are needed now, and return the most that were needed in the last while."""
        while self._needed and self._needed[-1][1] <= wanted:
            self._needed.pop()
        self._needed.append((now, wanted))
        while self._needed[0][0] < now - self._keep_s:
            self._needed.popleft()
        return self._needed[0][1]

    def _count(self, deployment: str, reason: str) -> None:
        """Count a decision. A metric belongs to the process that decides, which the policy is not made in."""
        if self._decisions is None:
            self._decisions = TaggedCounter(
                "ensemble_scaling_decisions",
                "Changes of the number of replicas by LatencyTarget, and its warnings.",
                "scaled",
                "reason",
            )
            report_counters()
        self._decisions.add(deployment, reason)

    def _warn(self, deployment: str, reason: str, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._count(deployment, reason)
            logger.warning(f"{deployment}: {text}")


def measured(metrics: Mapping[str, Series]) -> tuple[Load, float] | None:
    """Sum the load that all replicas of a deployment report, and count the calls that have piled up.

    None if no replica has reported twice.

    Args:
        metrics: by name and replica what `AutoscalingStats.stats` returned, as a series of values with their times.
    """
    if (rate := arriving(list(metrics.get("arrived", {}).values()))) is None:
        return None
    last = {name: _last(metrics.get(name, {})) for name in REPORTED}
    calls = last["alone_calls"]
    alone_s = _median([(last["alone_s"].get(replica, 0.0), calls[replica]) for replica in calls])
    # What no duration of a model comes near is a disturbance.
    spread = min(1.0, _median([(last["spread"].get(replica, 1.0), calls[replica]) for replica in calls]))
    # Twice what is usually under way is chance, and more has piled up.
    piled_up = max(0.0, sum(last["running_requests"].values()) - 2 * rate * alone_s - 2)
    return Load(rate, alone_s, spread), piled_up


def arriving(counts: Sequence[Sequence[Any]]) -> float | None:
    """Return the rate at which calls arrive at all replicas, per second; None if no replica has reported twice.

    It is the mean over all that replicas have reported. A burst of a second hardly moves that mean, so the result is
    higher where the last seconds prove a higher rate, by more than chance.
    """
    mean = _rate(counts, math.inf)
    if mean is None:
        return None
    recent = [(_rate(counts, seconds) or 0.0, seconds) for seconds in RECENT_S]
    return max(mean, *(rate - CERTAIN * math.sqrt(rate / seconds) for rate, seconds in recent))


def _rate(counts: Sequence[Sequence[Any]], seconds: float) -> float | None:
    """Sum the mean rates of all replicas' counts over the last seconds."""
    rates = []
    for series in counts:
        latest = [each for each in series if each.timestamp >= series[-1].timestamp - seconds]
        if len(latest) > 1 and latest[-1].timestamp > latest[0].timestamp:
            rates.append((latest[-1].value - latest[0].value) / (latest[-1].timestamp - latest[0].timestamp))
    return sum(rates) if rates else None


def _last(of: Series) -> dict[Any, float]:
    return {replica: float(series[-1].value) for replica, series in of.items() if series}


def _median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the median of values with weights: a new replica has few calls behind it, and they were slow."""
    left = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        left -= weight
        if left <= 0:
            return value
    return 0.0

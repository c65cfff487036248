"""A policy for Serve's autoscaling: as many replicas as a p99 needs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from ray.serve.config import AutoscalingContext

from deployments.contract.errors import ConfigurationError
from graph.scaling.replicas import Load, needed

logger = logging.getLogger("ray.serve")

LATE = 0.01
# Calls that have piled up are to be done within this time, besides those that come.
CATCH_UP_S = 1.0
Series = Mapping[Any, Any]


class LatencyTarget:
    """Grows at once to what a p99 needs, and shrinks to the most that the last while needed."""

    def __init__(self, p99_ms: float, keep_s: float = 60.0, at_a_time: int = 1) -> None:
        """Set what is promised.

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
        self._said: set[str] = set()

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and no state of Serve's."""
        load = measured(ctx.raw_metrics or {})
        if load is None:
            self._warn(f"{ctx.deployment_name}: no replica reports its calls, so the number of replicas stays")
            return ctx.target_num_replicas, {}
        most = max(1, ctx.capacity_adjusted_max_replicas)
        now, wanted = ctx.current_time or 0.0, needed(load, self._target_s, LATE, self._at_a_time, most)
        while self._needed and self._needed[-1][1] <= wanted:
            self._needed.pop()
        self._needed.append((now, wanted))
        while self._needed[0][0] < now - self._keep_s:
            self._needed.popleft()
        held = self._needed[0][1]
        if held != ctx.target_num_replicas:
            logger.info(
                f"{ctx.deployment_name}: {held} replicas instead of {ctx.target_num_replicas}; {load.rate:.1f} calls/s "
                f"of {1000 * load.alone_s:.1f} ms need {wanted} for a p99 of {1000 * self._target_s:g} ms"
            )
        if load.alone_s >= self._target_s:
            self._warn(f"{ctx.deployment_name}: even alone a call takes longer than the p99, which can't be held")
        return held, {}

    def _warn(self, text: str) -> None:
        """Log it once."""
        if text not in self._said:
            self._said.add(text)
            logger.warning(text)


def measured(metrics: Mapping[str, Series]) -> Load | None:
    """The load that all replicas of a deployment report together; None if none has reported twice.

    Args:
        metrics: by name and replica what `Demand.stats` returned, as a series of values with their times.
    """
    arrived = [series for series in metrics.get("arrived", {}).values() if len(series) > 1]
    rates = [
        (series[-1].value - series[0].value) / (series[-1].timestamp - series[0].timestamp)
        for series in arrived
        if series[-1].timestamp > series[0].timestamp
    ]
    if not rates:
        return None
    alone = [value for series in metrics.get("alone_s", {}).values() if series and (value := series[-1].value)]
    under_way = sum(series[-1].value for series in metrics.get("running_requests", {}).values() if series)
    alone_s = sorted(alone)[len(alone) // 2] if alone else 0.0
    rate = sum(rates)
    # Twice what is usually under way is chance, and more has piled up.
    piled_up = max(0.0, under_way - 2 * rate * alone_s - 2)
    return Load(rate + piled_up / CATCH_UP_S, alone_s)

"""The last ten minutes in periods of ten seconds, for the page: what each second's counts become."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

if TYPE_CHECKING:
    from deployments.observe.stats import Second

PERIOD_S = 10
PERIODS = 60


class Period(msgspec.Struct, omit_defaults=True):
    """Ten seconds, or as many of them as have passed."""

    answered: Annotated[int, Meta(description="requests with the outcome `ok`")] = 0
    failed: Annotated[int, Meta(description="requests with another outcome")] = 0
    p99_ms: Annotated[float | None, Meta(description="99 % took no longer; absent until the period has ended")] = None
    members: Annotated[dict[str, int], Meta(description="images that each member answered")] = {}
    missing: Annotated[dict[str, int], Meta(description="images answered without each member")] = {}
    seconds: Annotated[int, Meta(description="that have passed; absent for all ten")] = PERIOD_S


class Past:
    """Adds seconds up to periods, and forgets them after ten minutes.

    Attributes:
        until: the number of the last second that was added.
    """

    def __init__(self) -> None:
        self.until = -1
        self._periods: deque[tuple[int, Period]] = deque(maxlen=PERIODS)
        self._durations: list[float] = []

    def add(self, second: Second) -> None:
        """Add a second that has ended, later than those before."""
        self.until, number = second.number, second.number // PERIOD_S
        if not self._periods or self._periods[-1][0] != number:
            self._end()
            self._periods.append((number, Period()))
        period = self._periods[-1][1]
        period.answered += (answered := second.outcomes["ok"])
        period.failed += second.outcomes.total() - answered
        predictions: Counter[str] = Counter()
        for (name, _), count in second.predictions.items():
            predictions[name] += count
        period.members = Counter(period.members) + predictions
        period.missing = Counter(period.missing) + second.missing
        self._durations += second.durations

    def periods(self, since: int, now: int) -> list[Period]:
        """The periods until a second, of which the last may be in progress; those without requests as well."""
        last, passed = divmod(now, PERIOD_S)
        if self._periods and self._periods[-1][0] < last:
            self._end()
        known = dict(self._periods)
        first = max(since // PERIOD_S, last - PERIODS + 1)
        found = [known.get(number) or Period() for number in range(first, last + 1)]
        return [*found[:-1], *([replace(found[-1], seconds=passed)] if passed else [])]

    def _end(self) -> None:
        """Note the 99th percentile of the period before, once."""
        if self._durations:
            self._periods[-1][1].p99_ms = round(float(np.quantile(self._durations, 0.99)) * 1000, 3)
            self._durations = []

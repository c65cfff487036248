"""The statistics of the last minutes in this process, for the page: figures of the metrics, where they can be read.

The last minute is kept by seconds, and ten minutes in periods of ten seconds, which seconds are added up to.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.item import STREAMS, THREADS, AttributeValue
from deployments.observe.observer import Watcher

WINDOW_S = 60
# Periods of ten seconds, for ten minutes.
PERIOD_S = 10
PERIODS = 60
# Per second; if there are more, the first ones stand for all.
MAX_DURATIONS = 1000
COUNTERS = ("outcomes", "sizes", "predictions", "missing", "exits", "cache", "nodes_ns")


@dataclass(slots=True)
class Second:
    """The counts of one second, or of several that were added up."""

    number: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)
    sizes: Counter[int] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    predictions: Counter[tuple[str, bool]] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    load_shed: int = 0
    cache: Counter[str] = field(default_factory=Counter)
    nodes_ns: Counter[str] = field(default_factory=Counter)

    @property
    def period(self) -> int:
        """The number of the period that it belongs to."""
        return self.number // PERIOD_S

    @classmethod
    def sum(cls, seconds: Iterable[Second]) -> Second:
        """Add up seconds."""
        whole = cls()
        for each in seconds:
            for name in COUNTERS:
                getattr(whole, name).update(getattr(each, name))
            whole.durations += each.durations
            whole.longest_wait_s = max(whole.longest_wait_s, each.longest_wait_s)
            whole.load_shed += each.load_shed
        return whole

    def quantiles_ms(self, *shares: float) -> list[float | None]:
        """Return quantiles of the durations, ms; None without durations."""
        if not self.durations:
            return [None] * len(shares)
        return [round(float(seconds) * 1000, 3) for seconds in np.quantile(self.durations, shares)]


class Period(msgspec.Struct, omit_defaults=True):
    """A period of ten seconds, or the beginning of one."""

    answered: Annotated[int, Meta(description="requests with the outcome `ok`")] = 0
    failed: Annotated[int, Meta(description="requests with another outcome")] = 0
    p99_ms: Annotated[float | None, Meta(description="99th percentile, ms; absent until the period has ended")] = None
    members: Annotated[dict[str, int], Meta(description="images that each member answered")] = {}
    missing: Annotated[dict[str, int], Meta(description="images answered without each member")] = {}
    seconds: Annotated[int, Meta(description="seconds that have passed; absent for ten")] = PERIOD_S

    @classmethod
    def of(cls, seconds: Iterable[Second], passed: int = PERIOD_S) -> Period:
        """Add up the seconds of a period of which so many seconds have passed."""
        whole = Second.sum(seconds)
        members: Counter[str] = Counter()
        for (name, _), count in whole.predictions.items():
            members[name] += count
        answered = whole.outcomes["ok"]
        [p99_ms] = whole.quantiles_ms(0.99) if passed == PERIOD_S else [None]
        return cls(answered, whole.outcomes.total() - answered, p99_ms, dict(members), dict(whole.missing), passed)


class Stats(Watcher):
    """Counts requests and batches per second, and forgets them after a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = int(clock())
        # The last minute, and the second that has not ended.
        self._seconds: deque[Second] = deque(maxlen=WINDOW_S + 1)
        # Ended periods by number; those before `_open` are there.
        self._periods: deque[tuple[int, Period]] = deque(maxlen=PERIODS)
        self._open = 0
        # Threads and streams by what a trace calls a member's work.
        self.execution: dict[str, tuple[AttributeValue, AttributeValue]] = {}

    def request(self, outcome: str, seconds: float) -> None:
        """Count a request by its outcome and its duration."""
        now = self._now()
        now.outcomes[outcome] += 1
        if len(now.durations) < MAX_DURATIONS:
            now.durations.append(seconds)

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count an answered batch, and the wait of the image that waited longest, seconds."""
        now = self._now()
        now.sizes[len(batch.items)] += 1
        now.longest_wait_s = max(now.longest_wait_s, queue_wait_s)
        for note in batch.notes:
            now.nodes_ns[note.node] += note.end_ns - note.start_ns
            if (threads := note.attributes.get(THREADS)) is not None:
                self.execution[note.node] = threads, note.attributes[STREAMS]
        for position, answer in zip(batch.live, batch.payload, strict=True):
            item, known = batch.items[position], answer.classification
            if item.missing:
                now.missing.update(item.missing.keys())
            if known.asked:
                now.exits[known.asked[-1]] += 1
                now.load_shed += bool(known.load_shed)
            if known.cache is not None:
                now.cache["hit" if known.cache.hit else "miss"] += 1
            # `update` takes four times as long for so few.
            for name, vote in item.predictions.items():
                now.predictions[name, vote.index == known.index] += 1

    def recent(self) -> list[Second]:
        """List the ended seconds of the last minute, with or without requests, the oldest first."""
        end = int(self._clock())
        known = {second.number: second for second in self._seconds}
        return [known.get(n) or Second(n) for n in range(max(self._since, end - WINDOW_S), end)]

    def past(self) -> list[Period]:
        """List the periods of the last ten minutes, the oldest first; the last one may be in progress."""
        now = int(self._clock())
        self._end_periods(now)
        last, passed = divmod(now, PERIOD_S)
        known = dict(self._periods)
        periods = [known.get(n) or Period() for n in range(max(self._since // PERIOD_S, last - PERIODS + 1), last)]
        if passed:
            periods.append(Period.of((each for each in self._seconds if last * PERIOD_S <= each.number < now), passed))
        return periods

    def _end_periods(self, now: int) -> None:
        ended = (each for each in self._seconds if self._open <= each.period < now // PERIOD_S)
        self._periods.extend(
            (number, Period.of(seconds)) for number, seconds in groupby(ended, lambda each: each.period)
        )
        self._open = now // PERIOD_S

    def _now(self) -> Second:
        number = int(self._clock())
        if not self._seconds or self._seconds[-1].number != number:
            self._end_periods(number)
            self._seconds.append(Second(number))
        return self._seconds[-1]

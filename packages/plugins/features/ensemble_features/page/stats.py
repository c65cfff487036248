"""The statistics of the last minutes in this process, for the page: figures of the metrics, where they can be read.

The last minute is kept by seconds, and ten minutes in periods of ten seconds, which seconds are added up to.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.item import STREAMS, THREADS, AttributeValue

WINDOW_S = 60
# Periods of ten seconds, for ten minutes.
PERIOD_S = 10
PERIODS = 60
# Per second; if there are more, the first ones stand for all.
MAX_DURATIONS = 1000


@dataclass(slots=True)
class Second:
    """The counts of one second."""

    number: int
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


class Period(msgspec.Struct, omit_defaults=True):
    """A period of ten seconds, or the beginning of one."""

    answered: Annotated[int, Meta(description="requests with the outcome `ok`")] = 0
    failed: Annotated[int, Meta(description="requests with another outcome")] = 0
    p99_ms: Annotated[float | None, Meta(description="99th percentile, ms; absent until the period has ended")] = None
    members: Annotated[dict[str, int], Meta(description="images that each member answered")] = {}
    missing: Annotated[dict[str, int], Meta(description="images answered without each member")] = {}
    seconds: Annotated[int, Meta(description="seconds that have passed; absent for ten")] = PERIOD_S


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
        """List the periods until a second, with or without requests; the last one may be in progress."""
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


class Stats:
    """Counts requests and batches per second, and forgets them after a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = int(clock())
        # The last minute, and the second that has not ended.
        self._seconds: deque[Second] = deque(maxlen=WINDOW_S + 1)
        # Threads and streams by what a trace calls a member's work.
        self.execution: dict[str, tuple[AttributeValue, AttributeValue]] = {}
        self._past = Past()

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
        self._fold()
        return self._past.periods(self._since, int(self._clock()))

    def _fold(self) -> None:
        now = int(self._clock())
        for second in self._seconds:
            if self._past.until < second.number < now:
                self._past.add(second)

    def _now(self) -> Second:
        number = int(self._clock())
        if not self._seconds or self._seconds[-1].number != number:
            self._fold()
            self._seconds.append(Second(number))
        return self._seconds[-1]

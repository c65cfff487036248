"""The statistics of the last minute in this process, for the page: figures of the metrics, where they can be read."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.item import STREAMS, THREADS, AttributeValue
from deployments.observe.past import Past, Period

WINDOW_S = 60
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


class Stats:
    """Counts requests and batches per second, and forgets them after a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = int(clock())
        self._seconds: deque[Second] = deque(maxlen=WINDOW_S)
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
            item, index = batch.items[position], answer.classification.index
            if item.missing:
                now.missing.update(item.missing.keys())
            if item.asked:
                now.exits[item.asked[-1]] += 1
                now.load_shed += item.load_shed
            if item.cache is not None:
                now.cache["hit" if item.cache.hit else "miss"] += 1
            # `update` takes four times as long for so few.
            for name, vote in item.predictions.items():
                now.predictions[name, vote.index == index] += 1

    def recent(self) -> list[Second]:
        """The seconds of the last minute that have ended, the oldest first; those without requests as well."""
        end = int(self._clock())
        known = {second.number: second for second in self._seconds}
        return [known.get(n) or Second(n) for n in range(max(self._since, end - WINDOW_S), end)]

    def past(self) -> list[Period]:
        """The periods of the last ten minutes, the oldest first; the last may have begun only."""
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

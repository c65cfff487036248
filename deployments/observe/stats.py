"""What this process answered in the last minute, for the page: the metrics' figures, where they can be read."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch

WINDOW_S = 60
# Of each second; of more, the first ones stand for all.
MOST_DURATIONS = 1000


@dataclass(slots=True)
class Second:
    """What was counted in one second."""

    number: int
    outcomes: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)
    sizes: Counter[int] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    votes: Counter[tuple[str, bool]] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)


class Stats:
    """Counts requests and batches by the second, and forgets them after a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the clock, in seconds."""
        self._clock = clock
        self._since = int(clock())
        self._seconds: deque[Second] = deque(maxlen=WINDOW_S)

    def request(self, outcome: str, seconds: float) -> None:
        """Count a request by its outcome, and how long it took."""
        now = self._now()
        now.outcomes[outcome] += 1
        if len(now.durations) < MOST_DURATIONS:
            now.durations.append(seconds)

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count a batch that is back, whose image that came first waited so long."""
        now = self._now()
        now.sizes[len(batch.items)] += 1
        now.longest_wait_s = max(now.longest_wait_s, queue_wait_s)
        for position, answer in zip(batch.live, batch.payload, strict=True):
            item, index = batch.items[position], answer.classification.index
            if item.missing:
                now.missing.update(item.missing.keys())
            # Not by `update`, which takes four times as long for so few.
            for name, vote in item.votes.items():
                now.votes[name, vote.index == index] += 1

    def recent(self) -> list[Second]:
        """The seconds of the last minute that are over, one each, empty ones as well, the oldest first."""
        end = int(self._clock())
        known = {second.number: second for second in self._seconds}
        return [known.get(n) or Second(n) for n in range(max(self._since, end - WINDOW_S), end)]

    def _now(self) -> Second:
        number = int(self._clock())
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(Second(number))
        return self._seconds[-1]

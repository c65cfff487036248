"""Refused requests that said that they come again: each has a time of its own, and then a place is kept for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

# What a promise is late or early by and still holds, and the spans of time in which so many come, seconds.
LATE_S, EARLY_S, SPAN_S = 2.0, 0.05, 0.1
# Fewer than places become free, for the pace is an estimate.
CAUTION = 1.6
MOST, LONGEST_KEY = 10_000, 128


class Returns:
    """The times promised, by the key that a request is known again by."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set a clock, seconds."""
        self._clock = clock
        self._due: dict[str, float] = {}
        # How many are to come in each tenth of a second.
        self._booked: Counter[int] = Counter()
        self._swept = float("-inf")

    def promise(self, key: str, pace: float, longest_s: int) -> int | None:
        """When a request may come again, whole seconds from now; None if nothing is promised: it would be too long.

        Args:
            key: what it will be known by.
            pace: images that leave in a second.
            longest_s: the longest wait that is told.
        """
        now = self._clock()
        # Who comes before its time, or finds no place, is told another one, and needs the first no more.
        if (before := self._due.pop(key, None)) is not None:
            self._booked[int(before / SPAN_S)] -= 1
        if len(key) > LONGEST_KEY or self.outstanding() >= MOST:
            return None
        for wait in range(1, longest_s + 1):
            span = int((now + wait) / SPAN_S)
            if self._booked[span] + 1 <= max(1.0, SPAN_S * pace / CAUTION):
                self._booked[span] += 1
                self._due[key] = now + wait
                return wait
        return None

    def outstanding(self) -> int:
        """How many are still to come; who is too late is forgotten."""
        now = self._clock()
        if now - self._swept >= 1:
            self._swept = now
            self._due = {key: due for key, due in self._due.items() if due + LATE_S >= now}
            self._booked = Counter({span: n for span, n in self._booked.items() if span * SPAN_S >= now - 1})
        return len(self._due)

    def is_due(self, key: str) -> bool:
        """Whether a request comes at the time that it was promised."""
        due = self._due.get(key) if key else None
        return due is not None and -EARLY_S <= self._clock() - due <= LATE_S

    def keep(self, key: str) -> None:
        """A promise is kept: the request is in."""
        self._due.pop(key, None)

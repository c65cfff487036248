"""Refused requests that said that they come again: each has a time of its own, and then a place is kept for it."""

from __future__ import annotations

import time
from collections.abc import Callable

# What a promise is late or early by and still holds, seconds; clients that wait in whole seconds come late.
LATE_S, EARLY_S = 1.5, 0.05
# A little slower than places become free, for the pace is an estimate.
CAUTION = 1.1
MOST, LONGEST_KEY = 10_000, 128


class Returns:
    """The times promised, by the key that a request is known again by."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set a clock, seconds."""
        self._clock = clock
        # In the order of their times.
        self._due: dict[str, float] = {}
        self._last = float("-inf")

    def promise(self, key: str, pace: float, longest_s: float) -> float | None:
        """When a request may come again, seconds from now; None if nothing is promised: it would be too long.

        Args:
            key: what it will be known by.
            pace: images that leave in a second.
            longest_s: the longest wait that is told.
        """
        now = self._clock()
        due = max(self._last, now) + CAUTION / pace
        if due - now > longest_s or len(key) > LONGEST_KEY or self.outstanding() >= MOST:
            return None
        self._due.pop(key, None)
        self._due[key] = self._last = due
        return due - now

    def outstanding(self) -> int:
        """How many are still to come; who is too late is forgotten."""
        now = self._clock()
        while self._due:
            key, due = next(iter(self._due.items()))
            if due + LATE_S >= now:
                break
            del self._due[key]
        return len(self._due)

    def is_due(self, key: str) -> bool:
        """Whether a request comes at the time that it was promised."""
        due = self._due.get(key) if key else None
        return due is not None and -EARLY_S <= self._clock() - due <= LATE_S

    def keep(self, key: str) -> None:
        """A promise is kept: the request is in."""
        self._due.pop(key, None)

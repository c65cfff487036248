"""How fast images are answered, and so how long one more would wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

# A pace is measured over half a second and more, and forgotten after ten without another measurement.
WINDOW_S, VALID_S = 0.5, 10.0
LONGEST_S = 30


class ThroughputEstimator:
    """Measures the rate at which images are answered while enough of them are in flight to keep every node at work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._left = 0
        self._pace, self._pace_before = 0.0, 0.0
        self._measured = float("-inf")
        self._promised = float("-inf")

    def left(self, images: int, busy: bool) -> None:
        """Count images that leave with an answer; `busy` says whether enough others are in flight."""
        now = self._clock()
        if not busy or self._since is None:
            self._since, self._left = now if busy else None, 0
            return
        self._left += images
        if (elapsed := now - self._since) >= WINDOW_S:
            self._pace, self._pace_before = self._left / elapsed, self._pace
            self._measured = now
            self._since, self._left = now, 0

    @property
    def pace(self) -> float:
        """Images a second; 0 if it is not known."""
        return self._pace if self._clock() - self._measured < VALID_S else 0.0

    @property
    def proven_pace(self) -> float:
        """The faster of the last two measurements, images a second, since one alone may have met a standstill.

        0 unless both are known.
        """
        return max(self.pace, self._pace_before) if self.pace and self._pace_before else 0.0

    def retry_after_s(self, images: int, least: float) -> float:
        """Return the seconds until a client should try again; each client gets a later time than the one before.

        It is at least `least`, and that as long as the rate at which the images in flight leave is not known.
        """
        now = self._clock()
        wait = least
        if pace := self.pace:
            self._promised = max(self._promised, now + images / pace) + 1 / pace
            wait = min(max(self._promised - now, least), LONGEST_S)
            self._promised = min(self._promised, now + LONGEST_S)
        # Those who get the same must not come at the same moment.
        return wait * random.uniform(0.75, 1.0)

"""How fast images are answered, and so how long one more would wait; and how fast refusals leave."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

# A pace is measured over half a second and more, and forgotten after ten without another measurement.
WINDOW_S, VALID_S = 0.5, 10.0
LONGEST_WAIT_S = 30
# Refusals per second, or half as many as images are answered if that is more. Those of a second may leave together.
LEAST_PACE = 20.0
# The longest that one waits, seconds, and how many wait at a time; one more leaves at once.
LONGEST_S, MOST = 5.0, 256


class ThroughputEstimator:
    """Measures the rate at which images are answered while enough of them are in flight to keep every node at work.

    Attributes:
        since: when this measurement began, by the clock; None while none is made.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.since: float | None = None
        self._left = 0
        self._pace, self._pace_before = 0.0, 0.0
        self._measured = float("-inf")
        self._promised = float("-inf")

    def left(self, images: int, busy: bool) -> None:
        """Count images that leave with an answer; `busy` says whether enough others are in flight."""
        now = self._clock()
        if not busy or self.since is None:
            self.since, self._left = now if busy else None, 0
            return
        self._left += images
        if (elapsed := now - self.since) >= WINDOW_S:
            self._pace, self._pace_before = self._left / elapsed, self._pace
            self._measured = now
            self.since, self._left = now, 0

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
            wait = min(max(self._promised - now, least), LONGEST_WAIT_S)
            self._promised = min(self._promised, now + LONGEST_WAIT_S)
        # Those who get the same must not come at the same moment.
        return wait * random.uniform(0.75, 1.0)


class RejectionPacer:
    """Holds back refusals that exceed a rate, so that clients that ignore Retry-After take little from the others.

    Attributes:
        held: how many wait.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        least: float = LEAST_PACE,
        most: int = MOST,
    ) -> None:
        """Set a clock, seconds, and what waits; the least rate per second, and how many wait at most."""
        self._clock, self._sleep = clock, sleep
        self._least, self._most = least, most
        self._last = float("-inf")
        self.held = 0

    async def hold(self, pace: float = 0.0, retry_after_s: float = LONGEST_S) -> bool:
        """Wait for the turn of a refusal; whether it had to wait.

        Args:
            pace: images that are answered per second; 0 if it is not known.
            retry_after_s: of the refusal, which does not wait longer: a client that comes again then has lost nothing.
        """
        now, each = self._clock(), 1 / max(self._least, pace / 2)
        self._last = min(max(self._last + each, now - 1), now + LONGEST_S)
        wait_s = min(self._last - now, retry_after_s)
        if wait_s <= 0 or self.held >= self._most:
            return False
        self.held += 1
        try:
            await self._sleep(wait_s)
        finally:
            self.held -= 1
        return True

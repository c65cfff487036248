"""Refusals leave at a bounded rate, so that clients that ignore Retry-After take little from the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

# Refusals per second, or half as many as images are answered if that is more. Those of a second may leave together.
LEAST_PACE = 20.0
# The longest that one waits, seconds, and how many wait at a time; one more leaves at once.
LONGEST_S, MOST = 5.0, 256


class RejectionPacer:
    """Holds back refusals that exceed a rate.

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

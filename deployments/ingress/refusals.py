"""Refusals leave at a pace, so that who ignores when to come again takes little from those that are being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

# So many leave a second, or half as many as images if that is more. Those of a second may come together.
LEAST_PACE = 20.0
# The longest that one waits, seconds, and how many wait at a time; beyond that they leave at once.
LONGEST_S, MOST = 5.0, 256


class Refusals:
    """Holds back refusals that are more than a pace allows.

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
        """Set a clock, seconds, and what waits; how many leave a second at least, and how many wait at most."""
        self._clock, self._sleep = clock, sleep
        self._least, self._most = least, most
        self._last = float("-inf")
        self.held = 0

    async def hold(self, pace: float = 0.0, retry_after_s: float = LONGEST_S) -> bool:
        """Wait for the turn of a refusal; whether it had to wait.

        Args:
            pace: images that leave in a second; 0 if it is not known.
            retry_after_s: what the refusal says. None waits longer: who comes again then has lost nothing.
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

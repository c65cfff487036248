"""Shares of the in-flight limit: no client has more than its share while others want theirs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

# For how long a client that was refused is taken to want a place, seconds.
WANTS_S = 2.0


class Shares:
    """The images in flight of each client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._images: Counter[str] = Counter()
        self._wanted: dict[str, float] = {}

    def exceeds(self, client: str, images: int, places: int) -> bool:
        """Whether so many images more would exceed a client's share of the places."""
        now = self._clock()
        self._wanted = {name: since for name, since in self._wanted.items() if now - since < WANTS_S}
        wanting = len({client, *self._images, *self._wanted})
        return self._images[client] + images > max(1, places // wanting)

    def want(self, client: str) -> None:
        """Note that a client was refused, and so wants a place."""
        if client:
            self._wanted[client] = self._clock()

    def add(self, client: str, images: int) -> None:
        """Count images of a client that are admitted, or, below zero, answered."""
        if client:
            self._images[client] += images
            if not self._images[client]:
                del self._images[client]

"""Counts the calls of a node or of the ingress, and how long one takes that has the node to itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# The weight of the newest call in the mean and in the variance.
NEWEST = 0.1


class Demand:
    """What autoscaling goes by.

    Attributes:
        under_way: calls that have not ended.
        arrived: calls so far.
        alone_s: how long a call takes that began while no other was under way, seconds, as a moving mean; 0 before any.
    """

    def __init__(self) -> None:
        self.under_way = self.arrived = 0
        self.alone_s = self._variance = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call, from its begin to its end."""
        alone, began = not self.under_way, time.perf_counter()
        self.under_way += 1
        self.arrived += 1
        try:
            yield
        except BaseException:
            # How long a failure or a departed client took says nothing.
            alone = False
            raise
        finally:
            self.under_way -= 1
            if alone:
                self._took(time.perf_counter() - began)

    def _took(self, seconds: float) -> None:
        """A call that was alone has ended."""
        if not self.alone_s:
            self.alone_s = seconds
            return
        further = seconds - self.alone_s
        self.alone_s += NEWEST * further
        self._variance = (1 - NEWEST) * (self._variance + NEWEST * further**2)

    def stats(self) -> dict[str, float]:
        """What a replica reports; `graph.scaling.latency` reads it."""
        spread = self._variance / self.alone_s**2 if self.alone_s else 1.0
        return {"arrived": float(self.arrived), "alone_s": self.alone_s, "spread": spread}

"""Counts the calls of a node or of the ingress, and how long one takes that has the node to itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

# Calls whose durations are looked at. While another replica starts on the same cores, calls take longer for seconds: so
# many outlast that, and the median does not see the slowest half of them.
KEPT = 400


class AutoscalingStats:
    """What autoscaling goes by.

    Attributes:
        under_way: calls that have not ended.
        arrived: calls so far.
    """

    def __init__(self) -> None:
        self.under_way = self.arrived = 0
        self._alone: deque[float] = deque(maxlen=KEPT)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call, from its begin to its end."""
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
                self._alone.append(time.perf_counter() - began)

    def stats(self) -> dict[str, float]:
        """Return the figures that a replica reports; `graph.scaling.latency` reads them.

        `alone_s` is the median of how long a call took that began while no other was under way, seconds; 0 before any.
        `spread` is their variance, divided by the square of their mean, as their middle two thirds have it, and
        `alone_calls` how many these were.
        """
        alone = sorted(self._alone) or [0.0]
        low, median, high = (alone[len(alone) * sixth // 6] for sixth in (1, 3, 5))
        spread = ((high - low) / 2 / median) ** 2 if median else 1.0
        known = {"alone_s": median, "spread": spread, "alone_calls": float(len(self._alone))}
        return {"arrived": float(self.arrived), **known}

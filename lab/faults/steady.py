"""Requests in equal distances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ensemble_capacity.load.load import Arrivals


@dataclass(frozen=True)
class Steady(Arrivals):
    """Arrivals in equal distances."""

    def offsets(self) -> Iterator[float]:
        """See `Arrivals.offsets`."""
        return (number / self.rate for number in count(1))

"""When the requests of an open loop are due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Process = Literal["poisson", "constant", "gamma"]
CHUNK = 4096


@dataclass(frozen=True)
class Arrivals:
    """An arrival process.

    Attributes:
        rate: requests per second, on average.
        process: `constant` spaces them evenly, `poisson` independently, `gamma` in bursts.
        cv: the coefficient of variation of the gaps between them; of `gamma` alone, where 1 is `poisson`.
        times: recorded ones, seconds from the first; they replace the three above.
        seed: the same one gives the same times.
    """

    rate: float
    process: Process = "poisson"
    cv: float = 2.0
    times: tuple[float, ...] | None = None
    seed: int = 0

    def offsets(self) -> Iterator[float]:
        """When requests are due, seconds from the begin; without end unless they were recorded."""
        if self.times is not None:
            yield from self.times
            return
        draw, last = np.random.default_rng(self.seed), 0.0
        while True:
            due = last + np.cumsum(self._gaps(draw))
            yield from due.tolist()
            last = float(due[-1])

    def _gaps(self, draw: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        mean = 1 / self.rate
        if self.process == "constant":
            return np.full(CHUNK, mean)
        if self.process == "poisson":
            return draw.exponential(mean, CHUNK)
        shape = 1 / self.cv**2
        return draw.gamma(shape, mean / shape, CHUNK)

"""A mean over images, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Of the normal distribution, for both ends of an interval at 95 %.
TWO_SIDED = 1.96


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, percent."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Interval:
        """Of a value an image; of paired differences it is the paired interval."""
        mean, half = 100 * values.mean(), 100 * TWO_SIDED * values.std() / np.sqrt(len(values))
        return cls(float(mean), float(mean - half), float(mean + half))

    def __str__(self) -> str:
        """With two digits."""
        return f"{self.mean:.2f} % ({self.low:.2f} to {self.high:.2f})"

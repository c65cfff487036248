"""A mean over images with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graph.capabilities.proportion import Z, wilson


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, percent."""

    mean: float
    low: float
    high: float

    @classmethod
    def share(cls, found: NDArray[np.bool_]) -> Interval:
        """The share of the images for which something is true, with Wilson's interval."""
        low, mean, high = wilson(int(found.sum()), len(found))
        return cls(100 * mean, 100 * low, 100 * high)

    @classmethod
    def paired(cls, values: NDArray[np.float64]) -> Interval:
        """The mean of a difference of -1 to 1 for each image; as wide as for 3 others if all are the same."""
        mean, half = 100 * values.mean(), 100 * Z * values.std() / np.sqrt(len(values))
        half = half if values.std() else 100 * 3 / len(values)
        return cls(float(mean), float(max(mean - half, -100)), float(min(mean + half, 100)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} % ({self.low:.2f} to {self.high:.2f})"

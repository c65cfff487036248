"""A mean over images with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graph.features.proportion import Z, wilson


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, percent."""

    mean: float
    low: float
    high: float

    @classmethod
    def share(cls, found: NDArray[np.bool_]) -> Interval:
        """Compute the share of the images for which something is true, with Wilson's interval."""
        low, mean, high = wilson(int(found.sum()), len(found))
        return cls(100 * mean, 100 * low, 100 * high)

    @classmethod
    def paired(cls, values: NDArray[np.float64]) -> Interval:
        """Compute the mean of the differences, one of -1 to 1 for each image.

        If all images differ alike, or none does, the interval reaches as far as 3 of them could move the mean (the rule
        of three).
        """
        mean, spread = 100 * values.mean(), values.std()
        half = 100 * (Z * spread / np.sqrt(len(values)) if spread else 3 / len(values))
        return cls(float(mean), float(max(mean - half, -100)), float(min(mean + half, 100)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} % ({self.low:.2f} to {self.high:.2f})"

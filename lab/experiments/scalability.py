"""The Universal Scalability Law: what throughput can be at N, by contention and by the cost of keeping N consistent.

Source: N. J. Gunther, Guerrilla Capacity Planning (Springer, 2007), chapter 4:
X(N) = rate N / (1 + a (N - 1) + b N (N - 1)), with a the contention and b the coherence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scripts.errors import ScriptError

Floats = NDArray[np.float64]
# Of the fits to resampled residuals, for the 95 % interval.
DRAWS, LOW, HIGH = 400, 2.5, 97.5


def _fit(counts: Floats, rates: Floats) -> Floats:
    """[rate, contention, coherence] by least squares of relative errors, none of them negative."""
    # N / X is linear in 1 / rate, a / rate and b / rate; each row is divided by what it should be.
    columns = np.stack([np.ones_like(counts), counts - 1, counts * (counts - 1)], axis=1)
    scaled = columns * (rates / counts)[:, None]
    kept = [0, 1, 2]
    while True:
        solved, *_ = np.linalg.lstsq(scaled[:, kept], np.ones_like(rates), rcond=None)
        if (solved[1:] >= 0).all():
            break
        # What would be negative is left out, the most negative one first.
        kept.pop(1 + int(np.argmin(solved[1:])))
    found = np.zeros(3)
    found[kept] = solved
    return np.array([1 / found[0], found[1] / found[0], found[2] / found[0]])


def _at(parameters: Floats, counts: Floats) -> Floats:
    rate, contention, coherence = parameters
    return np.asarray(rate * counts / (1 + contention * (counts - 1) + coherence * counts * (counts - 1)))


@dataclass(frozen=True)
class Law:
    """A fit.

    Attributes:
        rate: of one, requests/s.
        contention: the share of the work that only one can do at a time.
        coherence: what each pair costs.
        draws: [draws, 3], the same of fits to resampled residuals.
    """

    rate: float
    contention: float
    coherence: float
    draws: Floats

    @classmethod
    def fit(cls, counts: Sequence[float], rates: Sequence[float], seed: int = 0) -> Self:
        """Fit it to rates at numbers of clients, replicas or machines.

        Raises:
            ScriptError: there are fewer than four points, a rate is not above 0, or no law fits.
        """
        at, measured = np.asarray(counts, float), np.asarray(rates, float)
        if len(set(counts)) < 4 or not (measured > 0).all():
            raise ScriptError(
                f"a fit needs rates above 0 at four numbers; there are {list(zip(counts, rates, strict=True))}"
            )
        best = _fit(at, measured)
        if best[0] <= 0:
            raise ScriptError(f"no law fits {rates}: they fall from the beginning")
        fitted = _at(best, at)
        # Three parameters take as much of the spread away.
        residuals = (measured / fitted - 1) * np.sqrt(len(at) / max(1, len(at) - 3))
        random = np.random.default_rng(seed)
        draws = [_fit(at, fitted * np.maximum(0.05, 1 + random.choice(residuals, len(at)))) for _ in range(DRAWS)]
        rate, contention, coherence = best.tolist()
        return cls(rate, contention, coherence, np.array([each for each in draws if each[0] > 0]))

    def at(self, count: float) -> tuple[float, float, float]:
        """The throughput at a number, and its 95 % interval."""
        one = np.array([count], float)
        drawn = [float(_at(each, one)[0]) for each in self.draws]
        low, high = np.percentile(drawn, [LOW, HIGH])
        return float(_at(np.array([self.rate, self.contention, self.coherence]), one)[0]), float(low), float(high)


def held_out(counts: Sequence[float], rates: Sequence[float]) -> float:
    """By how much a fit without the last point misses it, signed, a share of what was measured."""
    law = Law.fit(counts[:-1], rates[:-1])
    return law.at(counts[-1])[0] / rates[-1] - 1

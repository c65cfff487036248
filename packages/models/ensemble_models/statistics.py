"""Statistics of answers: top-1, intervals, calibration, and which of two models is right more often."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from deployments.contract.proportion import Z, wilson
from scripts.errors import ScriptError

# The index of each image's class, int64 [N].
Truth = NDArray[np.int64]

# The smallest probability whose logarithm is taken.
SMALLEST = 1e-30
BINS = 15
# The percentage above which the interval of a share lies if it is clearly the larger one.
MOST = 50
# The temperatures that are looked for, and by how many bisections.
LOWEST, HIGHEST, BISECTIONS = 0.05, 20.0, 30
# The significance level of `chance`.
LEVEL = 0.05
# The fewest images that only one of two models is right about which can decide, if it is always the same model.
FEWEST_PAIRS = 6


@dataclass(frozen=True)
class Interval:
    """A mean over images with its 95 % interval, percent."""

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


def paired(difference: Interval) -> str:
    """Put the interval of a difference into words."""
    return f"paired 95 % interval {difference.low:+.2f} to {difference.high:+.2f}"


def hits(probabilities: Probabilities, labels: Truth) -> NDArray[np.float64]:
    """Return, for each row, 1 if its most probable class is the right one, else 0."""
    return np.asarray(probabilities.argmax(axis=1) == labels, np.float64)


def top1(probabilities: Probabilities, labels: Truth) -> float:
    """Compute the share of rows, in percent, whose most probable class is the right one."""
    return 100 * int(hits(probabilities, labels).sum()) / len(labels)


def calibration_error(sure: Probabilities, right: NDArray[np.bool_]) -> float:
    """Compute the expected calibration error, in percent to two decimals.

    That is the mean difference between the probability of an answer and the share of answers that are right, in 15
    bins of equal width (Guo et al. 2017, arXiv:1706.04599).

    Args:
        sure: the probability of each answer, [N].
        right: whether each answer is right, bool [N].
    """
    bins = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    excess = np.bincount(bins, weights=sure - right.astype(np.float64), minlength=BINS)
    return round(100 * float(np.abs(excess).sum()) / len(sure), 2)


def log_loss(probabilities: Probabilities, labels: Truth) -> float:
    """Compute the mean negative log-likelihood, in nats, of labels, [N], by probabilities, [N,C]."""
    return -float(np.log(of_labels(probabilities, labels)).mean())


def less_surprised(first: Probabilities, second: Probabilities, labels: Truth) -> bool:
    """Check whether the second model makes the labels, [N], of clearly most images likelier than the first."""
    return Interval.share(of_labels(second, labels) > of_labels(first, labels)).low > MOST


def temperature(probabilities: Probabilities, labels: Truth) -> float:
    """Fit the temperature, to four digits, with which probabilities, [N,C], give labels, [N], the least log loss.

    The loss is convex in the reciprocal of the temperature (Guo et al. 2017, arXiv:1706.04599): its slope there, the
    expected mean logarithm less the labels' one, changes its sign once.

    Raises:
        ScriptError: it is not between 0.05 and 20.
    """
    scores = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST))
    target = scores[np.arange(len(labels)), labels].mean()
    low, high = LOWEST, HIGHEST
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / middle)
        expected = ((raised * scores).sum(axis=1) / raised.sum(axis=1)).mean()
        low, high = (middle, high) if expected > target else (low, middle)
    if min(low / LOWEST, HIGHEST / high) < 1.001:
        raise ScriptError(
            f"no temperature from {LOWEST} to {HIGHEST} fits: the model has all of these images right, or no more than "
            "guessing would have; use other images"
        )
    return float(f"{low:.4g}")


def of_labels(probabilities: Probabilities, labels: Truth) -> NDArray[np.float64]:
    """Look up the probability of each label, [N]."""
    found: NDArray[np.float64] = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.maximum(found, SMALLEST)


@dataclass(frozen=True)
class Verdict:
    """The result of McNemar's exact test on images that two models saw.

    Attributes:
        word: `promote`, `don't`, or `need more`.
        p: the probability of such a difference, or a greater one, by chance alone.
        more: how many more labelled images are needed, if they are like the ones before; 0 if none is.
    """

    word: str
    p: float
    more: int = 0

    def __str__(self) -> str:
        return f"need {self.more:,} more" if self.more else self.word


def chance(first_only: int, second_only: int) -> float:
    """Compute the two-sided p-value of McNemar's exact test: how probable such a difference is by chance.

    The arguments count the images that only the first and only the second model gets right. Source: McNemar, 1947,
    https://doi.org/10.1007/BF02295996
    """
    pairs, fewer = first_only + second_only, min(first_only, second_only)
    term = total = 1
    for k in range(1, fewer + 1):
        term = term * (pairs - k + 1) // k
        total += term
    return min(1.0, 2 * total / (1 << pairs))


def verdict(both: int, shadow_only: int, other_only: int, neither: int) -> Verdict:
    """Judge whether the shadow is right more often than the other, by the images that only one of them gets right."""
    pairs, total = shadow_only + other_only, both + shadow_only + other_only + neither
    p = chance(shadow_only, other_only)
    if p < LEVEL:
        return Verdict("promote" if shadow_only > other_only else "don't", p)
    if pairs == 0:
        # If none of n images is such, then at 95 % at most 3 / n of all images are (the rule of three).
        return Verdict("need more", p, max(1, math.ceil(total * FEWEST_PAIRS / 3)))
    more = max(needed(shadow_only, other_only) - pairs, 1)
    return Verdict("need more", p, math.ceil(more * total / pairs))


def needed(first_only: int, second_only: int) -> int:
    """Compute how many images that only one gets right would decide, if each keeps its share of them.

    Where neither has more, that share is the largest one that the images so far do not rule out.
    """
    pairs, larger = first_only + second_only, max(first_only, second_only)
    share = larger / pairs if 2 * larger > pairs else wilson(larger, pairs)[2]
    excess = 2 * share - 1
    # Of (excess * n - 1) / sqrt(n) = Z, the test with its correction for whole numbers.
    root = (Z + math.sqrt(Z * Z + 4 * excess)) / (2 * excess)
    return max(FEWEST_PAIRS, math.ceil(root * root))

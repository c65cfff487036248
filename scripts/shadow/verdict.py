"""McNemar's exact test: whether of two models that saw the same images one is right more often.

Source: McNemar, 1947, https://doi.org/10.1007/BF02295996
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graph.features.proportion import Z, wilson

# The significance level.
LEVEL = 0.05
# The fewest images that only one of the two was right about which can decide, if it is always the same one.
FEWEST_PAIRS = 6


@dataclass(frozen=True)
class Verdict:
    """The result of the test.

    Attributes:
        word: `promote`, `don't`, or `need more`.
        p: the probability of such a difference, or a greater one, by chance alone.
        more: how many more labelled images are needed, if they are like those that came; 0 where none are.
    """

    word: str
    p: float
    more: int = 0

    def __str__(self) -> str:
        return f"need {self.more:,} more" if self.more else self.word


def chance(first_only: int, second_only: int) -> float:
    """Compute the two-sided p-value from the numbers of images that only the first and only the second gets right."""
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

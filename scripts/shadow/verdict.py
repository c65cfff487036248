"""Whether of two models that saw the same images one is right more often: McNemar's test, exact.

Source: McNemar, 1947, https://doi.org/10.1007/BF02295996
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graph.flows.interval import Z, wilson

# A difference that chance makes less often is none of chance's.
LEVEL = 0.05
# So many images that only one of the two was right about are the fewest that can tell, if it is always the same one.
FEWEST_PAIRS = 6


@dataclass(frozen=True)
class Verdict:
    """What the images say.

    Attributes:
        word: `promote`, `don't`, or `need more`.
        p: how often chance alone would make such a difference, or a greater one.
        more: labelled images that are needed besides, if those to come are like those that came; 0 where none are.
    """

    word: str
    p: float
    more: int = 0

    def __str__(self) -> str:
        """In words."""
        return f"need {self.more:,} more" if self.more else self.word


def chance(first_only: int, second_only: int) -> float:
    """The two-sided probability that of so many images on which one alone is right, that one is so often the same."""
    pairs, fewer = first_only + second_only, min(first_only, second_only)
    term = total = 1
    for k in range(1, fewer + 1):
        term = term * (pairs - k + 1) // k
        total += term
    # Of whole numbers, because a power of two this large is none of a float's.
    return min(1.0, 2 * total / 2**pairs) if pairs < 1000 else min(1.0, float(2 * total * 10**18 >> pairs) / 10**18)


def verdict(both: int, shadow_only: int, other_only: int, neither: int) -> Verdict:
    """Whether the shadow is right more often than the other, by the images that only one of them was right about."""
    pairs, total = shadow_only + other_only, both + shadow_only + other_only + neither
    p = chance(shadow_only, other_only)
    if p < LEVEL:
        return Verdict("promote" if shadow_only > other_only else "don't", p)
    if pairs == 0:
        # With none among so many, 95 % sure, at most three times their inverse are (the rule of three).
        return Verdict("need more", p, max(1, math.ceil(total * FEWEST_PAIRS / 3)))
    more = max(needed(shadow_only, other_only) - pairs, 1)
    return Verdict("need more", p, math.ceil(more * total / pairs))


def needed(first_only: int, second_only: int) -> int:
    """How many such images would tell, if of them the same share went to the same one.

    Where neither has more, that share is the largest that is not ruled out by what came.
    """
    pairs, larger = first_only + second_only, max(first_only, second_only)
    share = larger / pairs if 2 * larger > pairs else wilson(larger, pairs)[2]
    excess = 2 * share - 1
    # Of (excess * n - 1) / sqrt(n) = Z, the test with its correction for whole numbers.
    root = (Z + math.sqrt(Z * Z + 4 * excess)) / (2 * excess)
    return max(FEWEST_PAIRS, math.ceil(root * root))

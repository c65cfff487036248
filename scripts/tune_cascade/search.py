"""The search for the cheapest cascade that loses little accuracy, on images that each member has predicted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.ensembles import Members, walk

# The 95 % quantile of the normal distribution, for a bound on one side.
ONE_SIDED = 1.645
# Costs within 5 % of each other count as equal, because they are measured.
NEARLY = 1.05
# Thresholds tried for each member but the last, by the number of those: together ten thousand at most.
TRIED = {1: 201, 2: 81, 3: 21}
# The log-odds of the lowest and the highest threshold between 0 and 1: the probabilities 0.18 and 0.9991.
LOG_ODDS = (-1.5, 7.0)
MOST_MEMBERS = len(TRIED) + 1
CHOOSING = "images that choose, half of all,"


@dataclass(frozen=True)
class Choice:
    """A cascade: the members in the order in which they are asked, and the thresholds."""

    order: tuple[str, ...]
    exit_at: tuple[float, ...]


def halves(dataset: Dataset) -> NDArray[np.bool_]:
    """Select the half of the images that chooses, bool [N]: the same ones wherever they lie."""
    _, chosen = dataset.hold_out(len(dataset) // 2)
    if chosen is None:
        raise ScriptError(f"{dataset.path} has one image; half of the images choose and the others judge")
    return np.isin(dataset.names, chosen.names)


def choose(members: Members, most_lost: float, order: Sequence[str] | None = None) -> Choice:
    """Find the cheapest cascade within a loss; of those that cost nearly the same, the most faithful one.

    What counts is the one-sided 95 % bound on the images that are answered wrongly and would not have been. Images that
    a cascade happens to answer right instead do not offset them: of many thresholds, the one that looks best on some
    images has been lucky on them.

    Args:
        members: their predictions for images that judge nothing else.
        most_lost: against all members together, points of top-1.
        order: of the members; None for the best one.

    Raises:
        ScriptError: there are too many members, or too few images to tell.
    """
    check_count(len(members.scores))
    full, labels = members.full(), members.labels
    found: list[tuple[float, int, Choice]] = []
    grid = thresholds(TRIED[len(members.scores) - 1])
    for names in [tuple(order)] if order else orders(members):
        answers, sure = members.steps(names)
        costs = [members.costs[name] for name in names]
        for exit_at in itertools.product(grid.tolist(), repeat=len(names) - 1):
            tried = walk(answers, sure, exit_at, costs)
            if lost(tried.answers == labels, full == labels) <= most_lost:
                others = int((tried.answers != full).sum())
                found.append((tried.cost, others, Choice(names, exit_at)))
    if not found:
        raise ScriptError(f"no cascade loses at most {most_lost} points; allow more by --loss, or give more images")
    cheapest = min(cost for cost, _, _ in found)
    near = [(others, cost, choice) for cost, others, choice in found if cost <= NEARLY * cheapest]
    return min(near, key=lambda each: each[:2])[2]


def thresholds(count: int) -> NDArray[np.float64]:
    """Choose `count` thresholds: 0, 1, and between them probabilities of four decimals, evenly spaced in log-odds.

    Most answers of calibrated members are surer than 0.95, where even steps of probability leave nothing to choose.
    """
    between = 1 / (1 + np.exp(-np.linspace(*LOG_ODDS, count - 2)))
    return np.concatenate([[0.0], between.round(4), [1.0]])


def orders(members: Members) -> Iterator[tuple[str, ...]]:
    """Yield every order that asks members of weight 0 first."""
    for order in itertools.permutations(members.scores):
        gates = [members.weights[name] == 0 for name in order]
        if gates == sorted(gates, reverse=True):
            yield order


def lost(hits: NDArray[np.bool_], full: NDArray[np.bool_]) -> float:
    """Bound the top-1 that a cascade loses, points, at 95 %, on images that all members together answer right."""
    return bound((full & ~hits).astype(float))


def check_count(members: int) -> None:
    """Raise ScriptError if a cascade can't be chosen for `members` members."""
    if not 2 <= members <= MOST_MEMBERS:
        raise ScriptError(f"a cascade is chosen for 2 to {MOST_MEMBERS} members; name them by --members")


def check_enough(images: int, most_lost: float, what: str = CHOOSING) -> None:
    """Raise ScriptError if one image is more than a loss, points, so that these images can't show it.

    A loss of 0 is let through, because no number of images is enough to show it.
    """
    if 0 < most_lost < 100 / images:
        raise ScriptError(
            f"{images:,} {what} can't show a loss of {most_lost:g} points: one of them is {100 / images:.3g} points; "
            f"give {math.ceil(100 / most_lost):,} of them or more, or allow a larger loss"
        )


def bound(values: NDArray[np.float64]) -> float:
    """Bound a mean from above, at 95 %, percent."""
    return float(100 * (values.mean() + ONE_SIDED * values.std() / np.sqrt(len(values))))

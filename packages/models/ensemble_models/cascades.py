"""Cascades on paper: the cheapest order and thresholds within a loss, and a ladder of them for several losses."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ensemble_models.ensembles import Members, walk
from ensemble_models.statistics import Interval
from scripts.errors import ScriptError

# The 95 % quantile of the normal distribution, for a bound on one side.
ONE_SIDED = 1.645
# Costs within 5 % of each other count as equal, because they are measured.
NEARLY = 1.05
# Thresholds tried for each member but the last, by the number of those: together ten thousand at most.
TRIED = {1: 201, 2: 81, 3: 21}
# The log-odds of the lowest and the highest threshold between 0 and 1: the probabilities 0.18 and 0.9991.
LOG_ODDS = (-1.5, 7.0)
MOST_MEMBERS = len(TRIED) + 1
# The costs that the rungs of a ladder are chosen for, divided by the cost of all members.
COSTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


@dataclass(frozen=True)
class Choice:
    """A cascade: the members in the order in which they are asked, and the thresholds."""

    order: tuple[str, ...]
    exit_at: tuple[float, ...]


# A cascade, its cost, how many images it answers otherwise than all members, and the bound of its loss, points.
Candidate = tuple[Choice, float, int, float]


def choose(members: Members, most_lost: float, order: Sequence[str] | None = None) -> Choice:
    """Find the cheapest cascade within a loss; of cascades that cost nearly the same, the most faithful one.

    The one-sided 95 % bound on images that only the cascade answers wrongly counts. Images that
    a cascade happens to answer right instead do not offset them: of many thresholds, the best one on some
    images has been lucky on them.

    Args:
        members: their predictions for images that judge nothing else.
        most_lost: against all members together, points of top-1.
        order: of the members; None for the best one.

    Raises:
        ScriptError: there are too many members, or too few images to tell.
    """
    check_count(len(members.scores))
    tried = candidates(members, [tuple(order)] if order else orders(members))
    found = [(others, cost, choice) for choice, cost, others, lost in tried if lost <= most_lost]
    if not found:
        raise ScriptError(f"no cascade loses at most {most_lost} points; allow more by --loss, or give more images")
    cheapest = min(cost for _, cost, _ in found)
    return min((each for each in found if each[1] <= NEARLY * cheapest), key=lambda each: each[:2])[2]


def candidates(members: Members, orders: Iterable[tuple[str, ...]]) -> Iterator[Candidate]:
    """Try every order with every threshold."""
    full, labels = members.full(), members.labels
    grid = thresholds(TRIED[len(members.scores) - 1])
    for names in orders:
        answers, sure = members.steps(names)
        costs = [members.costs[name] for name in names]
        for exit_at in itertools.product(grid.tolist(), repeat=len(names) - 1):
            tried = walk(answers, sure, exit_at, costs)
            others = int((tried.answers != full).sum())
            yield Choice(names, exit_at), tried.cost, others, lost(tried.answers == labels, full == labels)


def ladder(members: Members, choosing: NDArray[np.bool_], order: tuple[str, ...]) -> list[dict[str, Any]]:
    """Choose thresholds that lose least for each of `COSTS` on the images that choose, and bound the loss on others.

    Bounds are upper ends of 95 % intervals, rounded up. No safer rung has a larger bound. So a
    tolerance ends at the first rung that exceeds it, and the chance that its rung loses more is 2.5 %, however many
    rungs there are (fixed-sequence testing, arXiv:2110.01052).
    """
    tried, judged = list(candidates(members.part(choosing), [order])), members.part(~choosing)
    full, labels, rungs = judged.full(), judged.labels, list[dict[str, Any]]()
    total, loss, cheapest = sum(judged.costs.values()), 0.0, 1.0
    for most in COSTS:
        affordable = [(lost, others, -cost, choice) for choice, cost, others, lost in tried if cost <= most * total]
        if not affordable:
            break
        *_, choice = min(affordable, key=lambda each: each[:3])
        walk = judged.walk(order, choice.exit_at)
        cost = round(walk.cost / total, 4)
        if cost < cheapest:
            loss, cheapest = max(loss, Interval.share((full == labels) & (walk.answers != labels)).high), cost
            differs = Interval.share(walk.answers != full).high
            bounds = {"loss": math.ceil(100 * loss) / 100, "differs": math.ceil(100 * differs) / 10_000}
            rungs.append({"exit_at": list(choice.exit_at), **bounds, "cost": cost})
    return rungs


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
    values = (full & ~hits).astype(float)
    return float(100 * (values.mean() + ONE_SIDED * values.std() / np.sqrt(len(values))))


def check_count(members: int) -> None:
    """Raise ScriptError if a cascade can't be chosen for `members` members."""
    if not 2 <= members <= MOST_MEMBERS:
        raise ScriptError(f"a cascade is chosen for 2 to {MOST_MEMBERS} members; name them by --members")

"""Cascades on paper: what each order and each threshold would have answered, from the members' scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method, combine
from deployments.contract.payload import Probabilities
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import Truth

Signal = Literal["maximum", "margin"]
# Of the normal distribution: a bound on one side, at 95 %.
ONE_SIDED = 1.645
# Costs that can't be told apart: they are measured.
NEARLY = 1.05
# Thresholds tried for each stage, by the number of stages that have one: together some ten thousand at most.
TRIED = {1: 201, 2: 81, 3: 21}
MOST_MEMBERS = len(TRIED) + 1


@dataclass(frozen=True)
class Walk:
    """What a cascade does to some images.

    Attributes:
        answers: the classes that it answers, int64 [N].
        stops: the share of the images that each member is the last to be asked of.
        cost: of a mean image, in the unit of the members' costs.
    """

    answers: Truth
    stops: tuple[float, ...]
    cost: float


@dataclass(frozen=True)
class Members:
    """What each member says of labelled images.

    Attributes:
        scores: by name, float32 [N,C].
        labels: the right classes, int64 [N].
        weights: by name; 0 for one that is only a gate.
        costs: of an image, by name.
        method: how members are combined.
    """

    scores: Mapping[str, Probabilities]
    labels: Truth
    weights: Mapping[str, float]
    costs: Mapping[str, float]
    method: Method = "mean"

    def part(self, rows: NDArray[np.bool_]) -> Members:
        """Of some of the images."""
        scores = {name: said[rows] for name, said in self.scores.items()}
        return Members(scores, self.labels[rows], self.weights, self.costs, self.method)

    def combined(self, names: Sequence[str]) -> Probabilities:
        """What members say together; those of weight 0 count only among themselves."""
        weights = [self.weights[name] for name in names]
        return combine(
            [self.scores[name] for name in names], weights if any(weights) else [1.0] * len(names), self.method
        )

    def full(self) -> Truth:
        """What all of them together answer, int64 [N]."""
        answers: Truth = self.combined(list(self.scores)).argmax(axis=1)
        return answers

    def orders(self) -> Iterator[tuple[str, ...]]:
        """Every order that asks gates first."""
        for order in itertools.permutations(self.scores):
            gates = [self.weights[name] == 0 for name in order]
            if gates == sorted(gates, reverse=True):
                yield order

    def stages(self, order: Sequence[str], signal: Signal = "maximum") -> tuple[Truth, Probabilities]:
        """After each stage, what would be answered, and how sure it is; [stages,N]."""
        so_far = [self.combined(order[: count + 1]) for count in range(len(order))]
        answers = np.stack([said.argmax(axis=1) for said in so_far])
        return answers, np.stack([sureness(said, signal) for said in so_far])

    def walk(self, order: Sequence[str], exit_at: Sequence[float], signal: Signal = "maximum") -> Walk:
        """What a cascade does."""
        return _walk(*self.stages(order, signal), exit_at, [self.costs[name] for name in order])


def sureness(said: Probabilities, signal: Signal) -> Probabilities:
    """The largest probability of each row, or its margin to the second."""
    two = np.partition(said, -2, axis=1)[:, -2:]
    sure: Probabilities = two[:, 1] if signal == "maximum" else two[:, 1] - two[:, 0]
    return sure


def _walk(answers: Truth, sure: Probabilities, exit_at: Sequence[float], costs: Sequence[float]) -> Walk:
    leaves = np.vstack([sure[:-1] >= np.asarray(exit_at, np.float32)[:, None], np.ones((1, sure.shape[1]), bool)])
    last = leaves.argmax(axis=0)
    stops = np.bincount(last, minlength=len(costs)) / len(last)
    return Walk(answers[last, np.arange(len(last))], tuple(stops.tolist()), float(np.cumsum(costs) @ stops))


@dataclass(frozen=True)
class Choice:
    """A cascade: the members in the order in which they are asked, and the thresholds."""

    order: tuple[str, ...]
    exit_at: tuple[float, ...]


def choose(members: Members, most_lost: float) -> Choice:
    """The cheapest cascade that loses no more than that; of those that cost nearly the same, the most faithful one.

    What counts is the bound (95 %, one-sided) of the images that are answered wrongly and would not have been. Those
    that it happens to have right instead don't pay for them: of many thresholds, the one that looks best on some
    images has been lucky on them.

    Args:
        members: on images that judge nothing else.
        most_lost: against all members together, points of top-1.

    Raises:
        ScriptError: there are too many members, or the images are too few to tell.
    """
    if not 2 <= len(members.scores) <= MOST_MEMBERS:
        raise ScriptError(f"a cascade is chosen for 2 to {MOST_MEMBERS} members; name them by --members")
    full, labels = members.full(), members.labels
    found: list[tuple[float, int, Choice]] = []
    grid = np.linspace(0, 1, TRIED[len(members.scores) - 1])
    for order in members.orders():
        answers, sure = members.stages(order)
        costs = [members.costs[name] for name in order]
        for exit_at in itertools.product(grid.tolist(), repeat=len(order) - 1):
            walk = _walk(answers, sure, exit_at, costs)
            if lost(walk.answers == labels, full == labels) <= most_lost:
                others = int((walk.answers != full).sum())
                found.append((walk.cost, others, Choice(order, tuple(round(value, 4) for value in exit_at))))
    if not found:
        raise ScriptError(f"no cascade loses at most {most_lost} points; allow more by --loss, or give more images")
    cheapest = min(cost for cost, _, _ in found)
    near = [(others, cost, choice) for cost, others, choice in found if cost <= NEARLY * cheapest]
    return min(near, key=lambda each: each[:2])[2]


def lost(hits: NDArray[np.bool_], full: NDArray[np.bool_]) -> float:
    """The points of top-1 that it loses at most, at 95 %: of images that all members together have right."""
    losses = (full & ~hits).astype(float)
    return float(100 * (losses.mean() + ONE_SIDED * losses.std() / np.sqrt(len(losses))))

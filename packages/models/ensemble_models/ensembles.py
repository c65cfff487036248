"""Ensembles on paper: what members answer together to images that each has predicted, side by side or in a cascade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method, combine, known
from deployments.contract.payload import Probabilities
from ensemble_models.statistics import Truth


def method(name: str) -> str:
    """Check the name of a method by which predictions are combined; the type of an option."""
    try:
        return known(name)
    except ValueError as err:
        raise click.BadParameter(str(err)) from err


@dataclass(frozen=True)
class Walk:
    """What a cascade does with some images.

    Attributes:
        answers: the classes that it answers, int64 [N].
        sure: how probable they are, float32 [N].
        stops: for each member in order, the share of the images for which it is the last to be asked.
        cost: of a mean image, in the unit of the members' costs.
    """

    answers: Truth
    sure: Probabilities
    stops: tuple[float, ...]
    cost: float


@dataclass(frozen=True)
class Members:
    """The members' predictions for labelled images.

    Attributes:
        scores: by name, float32 [N,C].
        labels: the right classes, int64 [N].
        weights: by name; 0 for one that only opens a cascade.
        costs: of an image, by name.
        method: how predictions are combined.
    """

    scores: Mapping[str, Probabilities]
    labels: Truth
    weights: Mapping[str, float]
    costs: Mapping[str, float]
    method: Method = "mean"

    def part(self, rows: NDArray[np.bool_]) -> Members:
        """Select some of the images."""
        scores = {name: predicted[rows] for name, predicted in self.scores.items()}
        return Members(scores, self.labels[rows], self.weights, self.costs, self.method)

    def only(self, names: Sequence[str]) -> Members:
        """Select some of the members."""
        scores = {name: self.scores[name] for name in names}
        weights, costs = {name: self.weights[name] for name in names}, {name: self.costs[name] for name in names}
        return Members(scores, self.labels, weights, costs, self.method)

    def combined(self, names: Sequence[str]) -> Probabilities:
        """Combine some members, float32 [N,C]; members of weight 0 count only among themselves."""
        weights = [self.weights[name] for name in names]
        return combine(
            [self.scores[name] for name in names], weights if any(weights) else [1.0] * len(names), self.method
        )

    def full(self) -> Truth:
        """Compute the answers of all members together, int64 [N]."""
        return np.asarray(self.combined(list(self.scores)).argmax(axis=1), np.int64)

    def steps(self, order: Sequence[str]) -> tuple[Truth, Probabilities]:
        """Compute the answers after each member of an order, and the probability of each, both [members,N]."""
        so_far = [self.combined(order[: count + 1]) for count in range(len(order))]
        return np.stack([each.argmax(axis=1) for each in so_far]), np.stack([each.max(axis=1) for each in so_far])

    def walk(self, order: Sequence[str], exit_at: Sequence[float]) -> Walk:
        """Run the cascade of this order and these thresholds."""
        return walk(*self.steps(order), exit_at, [self.costs[name] for name in order])


def walk(answers: Truth, sure: Probabilities, exit_at: Sequence[float], costs: Sequence[float]) -> Walk:
    """Run a cascade on images; for answers and sureness see `Members.steps`.

    An image is asked no further at the probability that `exit_at` has for each member but the last.
    """
    leaves = np.vstack([sure[:-1] >= np.asarray(exit_at, np.float32)[:, None], np.ones((1, sure.shape[1]), bool)])
    last, images = leaves.argmax(axis=0), np.arange(sure.shape[1])
    stops = np.bincount(last, minlength=len(costs)) / len(last)
    return Walk(answers[last, images], sure[last, images], tuple(stops.tolist()), float(np.cumsum(costs) @ stops))

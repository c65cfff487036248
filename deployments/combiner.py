"""The combiner: the members' probabilities in, the ensemble's probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import MemberPrediction
from deployments.contract.payload import MemberProbabilities, Probabilities
from deployments.contract.settings import Placement, Schema, Weight
from deployments.entry_points import COMBINERS, find

OPERATION = "combine"
# Combines members: takes the probabilities of each, float32 [members,N,C], whose rows sum to 1, and the weight of each,
# float32 [members], which sum to 1; returns float32 [N,C], whose rows sum to 1.
Combination = Callable[[NDArray[np.float32], NDArray[np.float32]], Probabilities]

# The smallest probability in the geometric mean, so that one member's zero does not rule out a class.
SMALLEST = np.float32(1e-7)
# The weight of the mean in a majority vote: too small to outweigh a vote, large enough for float32 to break a tie.
TIE_BREAK = np.float32(1e-4)

VOTES = "majority_vote"
# With these the class is every member's, if every member has the same one.
UNANIMOUS = frozenset({"mean", "geometric_mean", VOTES})
VOTES_HINT = "method: votes don't tell how sure the members are, which decides who is called; take another method"


def mean(members: NDArray[np.float32], weights: NDArray[np.float32]) -> Probabilities:
    """Average the probabilities, by weight; see `Combination`."""
    result: Probabilities = np.tensordot(weights, members, axes=1)
    return result


def geometric_mean(members: NDArray[np.float32], weights: NDArray[np.float32]) -> Probabilities:
    """Average the logarithms of the probabilities, by weight, and normalize; see `Combination`."""
    logarithm = np.tensordot(weights, np.log(np.maximum(members, SMALLEST)), axes=1)
    product = np.exp(logarithm - logarithm.max(axis=1, keepdims=True))
    result: Probabilities = product / product.sum(axis=1, keepdims=True)
    return result


def majority_vote(members: NDArray[np.float32], weights: NDArray[np.float32]) -> Probabilities:
    """Count the weight whose most probable class it is; a tie goes to the larger mean; see `Combination`."""
    average = mean(members, weights)
    votes = np.zeros_like(average)
    for weight, winners in zip(weights, members.argmax(axis=2), strict=True):
        votes[np.arange(len(votes)), winners] += weight
    ranked = votes + average * TIE_BREAK
    result: Probabilities = ranked / ranked.sum(axis=1, keepdims=True)
    return result


def known(method: str) -> str:
    """Return the name of a method; raises ValueError if there is none of that name."""
    find(COMBINERS, method)
    return method


Method = Annotated[str, AfterValidator(known)]


class CombinerSettings(Schema):
    """The settings of the combiner."""

    method: Method = Field(
        "mean", description="`mean`, `geometric_mean`, `majority_vote`, or a function of your own as `module:name`"
    )
    weights: dict[str, Weight] = Field(
        default={}, description="by member name, 0 for members left out; default: the members' own weights"
    )


class CombinerConfig(CombinerSettings):
    """The combiner."""

    placement: Placement = "separate"


def check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise ValueError unless every weight belongs to a member and at least one member has a positive weight."""
    if unknown := sorted(set(weights) - set(names)):
        raise ValueError(f"combiner.weights: no member {unknown[0]!r}; the members are {list(names)}")
    if not any(weights.get(name, 0.0) > 0 for name in names):
        raise ValueError("combiner.weights: at least one member needs a weight above 0")


def combine(members: Sequence[Probabilities], weights: Sequence[float], method: str) -> Probabilities:
    """Combine members' probabilities by a method of `CombinerSettings`.

    Args:
        members: one float32 [N,C] per member, rows that sum to 1.
        weights: one per member, not negative, not all zero.
        method: its name; `Combination` is its signature.

    Returns:
        float32 [N,C], rows that sum to 1.

    Raises:
        ConfigurationError: the method returned another shape.
    """
    stacked = np.stack(members)
    share = (np.asarray(weights, np.float64) / np.sum(weights)).astype(np.float32)
    combination: Combination = find(COMBINERS, method)
    combined = combination(stacked, share)
    if combined.shape != stacked.shape[1:] or not np.isfinite(combined).all():
        raise ConfigurationError(f"combiner.method: {method} returned no probabilities of shape {stacked.shape[1:]}")
    return combined


class Group(NamedTuple):
    """Images that the same members answered: each member's probabilities, float32 [N,C], and each member's weight."""

    scores: Sequence[Probabilities]
    weights: Sequence[float]

    def combined(self, method: str) -> Probabilities:
        """Combine the members, float32 [N,C]; they count alike if all of them have a weight of 0."""
        return combine(self.scores, self.weights if any(self.weights) else [1.0] * len(self.scores), method)

    def without(self, rows: Sequence[int], method: str, combined: Probabilities) -> list[dict[int, int]]:
        """Find the images of some rows that get another class than the `combined` one without a member.

        Returns:
            For each member by row, the class without the member.
        """
        found: list[dict[int, int]] = [{} for _ in self.scores]
        if len(self.scores) < 2 or not rows:
            return found
        winners = combined[rows].argmax(axis=1)
        for member, changed in enumerate(found):
            others = [other for other in range(len(self.scores)) if other != member]
            rest = Group([self.scores[other][rows] for other in others], [self.weights[other] for other in others])
            classes = rest.combined(method).argmax(axis=1)
            changed.update((rows[place], int(classes[place])) for place in np.flatnonzero(classes != winners).tolist())
        return found


class Combiner:
    """Combines the members' probabilities of each image, of which an image may lack some."""

    def __init__(self, settings: CombinerSettings, weights: Mapping[str, float], graded: bool = False) -> None:
        """Set the method, the members' own weights by name, and whether the result must tell how sure they are."""
        self._own_weights = weights
        self._graded = graded
        self.check(settings)
        self.settings = settings

    def check(self, settings: CombinerSettings) -> None:
        """Raise ConfigurationError for weights of no member, only weights of 0, or a method that is not graded."""
        if self._graded and settings.method == VOTES:
            raise ConfigurationError(VOTES_HINT)
        try:
            check_weights(settings.weights or self._own_weights, list(self._own_weights))
        except ValueError as err:
            raise ConfigurationError(str(err)) from err

    async def __call__(self, batch: Batch[MemberProbabilities]) -> Batch[Probabilities]:
        """Combine the members' probabilities, float32 [N,C] by name, to the ensemble's, float32 [N,C].

        Raises:
            ConfigurationError: members disagree on the number of classes.
        """
        work = Work(OPERATION, batch)
        by_member = work.payload
        counts = {name: scores.shape[1] for name, scores in by_member.items()}
        if len(set(counts.values())) > 1:
            raise ConfigurationError(f"members disagree on the number of classes: {counts}")
        rows = len(next(iter(by_member.values())))
        combined = np.empty((rows, next(iter(counts.values()))), np.float32)
        predictions: list[dict[str, MemberPrediction]] = [{} for _ in range(rows)]
        keeps_all = [item.options.members for item in work.batch.items if item.error is None]
        weights = self.settings.weights or self._own_weights
        answered = np.stack([~np.isnan(scores[:, 0]) for scores in by_member.values()])
        all_rows = [(list(by_member), np.arange(rows))]
        for names, selected in all_rows if answered.all() else _by_members(list(by_member), answered):
            group = Group([by_member[name][selected] for name in names], [weights.get(name, 0.0) for name in names])
            combined[selected] = together = group.combined(self.settings.method)
            places = selected.tolist()
            votes = self._votes(group, together, [keeps_all[row] for row in places])
            for name, of_member in zip(names, votes, strict=True):
                for row, vote in zip(places, of_member, strict=True):
                    predictions[row][name] = vote
        noted = [{"predictions": each} for each in predictions]
        return work.done(combined, noted.__getitem__)

    def _votes(
        self, group: Group, combined: Probabilities, keeps_all: Sequence[bool]
    ) -> Iterator[list[MemberPrediction]]:
        """Yield each member's predictions for a group's images; `keeps_all` tells whether they keep every class."""
        winners = [scores.argmax(axis=1).tolist() for scores in group.scores]
        without = group.without(self._decided(winners), self.settings.method, combined)
        for scores, classes, others in zip(group.scores, winners, without, strict=True):
            every = [scores[row].tobytes() if keeps else b"" for row, keeps in enumerate(keeps_all)]
            best = scores.max(axis=1).tolist()
            yield [
                MemberPrediction(*vote, others.get(row))
                for row, vote in enumerate(zip(classes, best, every, strict=True))
            ]

    def _decided(self, winners: Sequence[Sequence[int]]) -> list[int]:
        """Select the images whose class one member may decide, by the members' own classes, [members][N]."""
        votes = zip(*winners, strict=True)
        return [row for row, each in enumerate(votes) if self.settings.method not in UNANIMOUS or len(set(each)) > 1]


def _by_members(names: list[str], answered: NDArray[np.bool_]) -> list[tuple[list[str], NDArray[np.int64]]]:
    """Group rows by the members that answered them, bool [members,N]; each group has the names and the rows."""
    patterns, which = np.unique(answered, axis=1, return_inverse=True)
    groups = enumerate(patterns.T)
    return [(list(compress(names, pattern)), np.flatnonzero(which == number)) for number, pattern in groups]

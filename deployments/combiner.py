"""The combiner: the members' probabilities in, the ensemble's out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Vote
from deployments.contract.payload import Ballots, Probabilities
from deployments.contract.settings import Placement, Schema, Weight

OPERATION = "combine"
Method = Literal["mean", "geometric_mean", "majority_vote"]

# Below this a probability is taken as this, so that one member's zero does not veto a class in the geometric mean.
SMALLEST = np.float32(1e-7)
# The mean's part in a majority vote: too small to outweigh a vote, large enough for float32 to tell a tie by.
TIE_BREAK = np.float32(1e-4)

VOTES_HINT = "method: votes don't tell how sure the members are, which a cascade goes by; take another method"


class CombinerSettings(Schema):
    """How the members' probabilities become one."""

    method: Method = Field("mean", description="how probabilities are combined; see `combine`")
    weights: dict[str, Weight] = Field(default={}, description="by member name; default: the members' own weights")


class CombinerConfig(CombinerSettings):
    """The combiner."""

    placement: Placement = "separate"


def check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    """Raise ValueError unless every weight belongs to a member and at least one member has a positive weight."""
    if unknown := sorted(set(weights) - set(names)):
        raise ValueError(f"combiner.weights: no member {unknown[0]!r}; the members are {list(names)}")
    if not any(weights.get(name, 0.0) > 0 for name in names):
        raise ValueError("combiner.weights: at least one member needs a weight above 0")


def combine(members: Sequence[Probabilities], weights: Sequence[float], method: Method) -> Probabilities:
    """Combine members' probabilities.

    Args:
        members: one float32 [N,C] per member, rows that sum to 1.
        weights: one per member, not negative, not all zero.
        method: `mean`, the weighted arithmetic mean; `geometric_mean`, the weighted geometric mean, normalized;
            `majority_vote`, the share of the weight whose most probable class it is, ties going to the class with
            the larger weighted mean.

    Returns:
        float32 [N,C], rows that sum to 1.
    """
    stacked = np.stack(members)
    share = (np.asarray(weights, np.float64) / np.sum(weights)).astype(np.float32)
    mean: Probabilities = np.tensordot(share, stacked, axes=1)
    if method == "mean":
        return mean
    if method == "geometric_mean":
        logarithm = np.tensordot(share, np.log(np.maximum(stacked, SMALLEST)), axes=1)
        product = np.exp(logarithm - logarithm.max(axis=1, keepdims=True))
        result: Probabilities = product / product.sum(axis=1, keepdims=True)
        return result
    votes = np.zeros_like(mean)
    for weight, winners in zip(share, stacked.argmax(axis=2), strict=True):
        votes[np.arange(len(votes)), winners] += weight
    ranked = votes + mean * TIE_BREAK
    total: Probabilities = ranked / ranked.sum(axis=1, keepdims=True)
    return total


class Combiner:
    """Combines what the members say of each image; an image may lack some of them."""

    def __init__(self, settings: CombinerSettings, weights: Mapping[str, float], graded: bool = False) -> None:
        """Set how members are combined.

        Args:
            settings: the method, and weights.
            weights: the members' own weights, by name, that `settings.weights` replaces when given.
            graded: whether the outcome must tell how sure the members are, as a cascade needs it.
        """
        self._own_weights = weights
        self._graded = graded
        self.check(settings)
        self.settings = settings

    def check(self, settings: CombinerSettings) -> None:
        """Raise ConfigurationError unless every weight is a member's, one is above 0, and the method grades enough."""
        if self._graded and settings.method == "majority_vote":
            raise ConfigurationError(VOTES_HINT)
        try:
            check_weights(settings.weights or self._own_weights, list(self._own_weights))
        except ValueError as err:
            raise ConfigurationError(str(err)) from err

    async def __call__(self, batch: Batch[Ballots]) -> Batch[Probabilities]:
        """Each member's probabilities, float32 [N,C] by name, to the ensemble's, float32 [N,C].

        Raises:
            ConfigurationError: members disagree on the number of classes.
        """
        work = Work(OPERATION, batch)
        ballots = work.payload
        counts = {name: scores.shape[1] for name, scores in ballots.items()}
        if len(set(counts.values())) > 1:
            raise ConfigurationError(f"members disagree on the number of classes: {counts}")
        rows = len(next(iter(ballots.values())))
        combined = np.empty((rows, next(iter(counts.values()))), np.float32)
        votes: list[dict[str, Vote]] = [{} for _ in range(rows)]
        told = [item.options.members for item in work.batch.items if item.error is None]
        for names, chosen in _alike(ballots):
            scores = [ballots[name][chosen] for name in names]
            combined[chosen] = combine(scores, self._weights(names), self.settings.method)
            for name, said in zip(names, scores, strict=True):
                winners, best = said.argmax(axis=1).tolist(), said.max(axis=1).tolist()
                for position, row in enumerate(chosen.tolist()):
                    whole = said[position].tobytes() if told[row] else b""
                    votes[row][name] = Vote(winners[position], best[position], whole)
        return work.done(combined, lambda row: {"votes": votes[row]})

    def _weights(self, names: Sequence[str]) -> list[float]:
        """Those of the members that answered; of equal weight where none of them has any."""
        weights = self.settings.weights or self._own_weights
        given = [weights.get(name, 0.0) for name in names]
        return given if any(given) else [1.0] * len(names)


def _alike(ballots: Ballots) -> Iterator[tuple[list[str], NDArray[np.intp]]]:
    """The rows that the same members answered, with their names."""
    names = list(ballots)
    answered = np.stack([~np.isnan(scores[:, 0]) for scores in ballots.values()])
    if answered.all():
        yield names, np.arange(answered.shape[1])
        return
    patterns, which = np.unique(answered, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        yield [name for name, said in zip(names, pattern, strict=True) if said], np.flatnonzero(which == number)

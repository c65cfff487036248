"""The combiner: the members' probabilities in, the ensemble's probabilities out."""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Annotated

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
    """Raise ConfigurationError unless every weight belongs to a member, and a member has a positive weight."""
    if unknown := sorted(set(weights) - set(names)):
        raise ConfigurationError(f"combiner.weights: no member {unknown[0]!r}; the members are {list(names)}")
    if not any(weights.get(name, 0.0) > 0 for name in names):
        raise ConfigurationError("combiner.weights: at least one member needs a weight above 0")


def combine(members: Sequence[Probabilities], weights: Sequence[float], method: str) -> Probabilities:
    """Combine members' probabilities by a method of `CombinerSettings`.

    Args:
        members: one float32 [N,C] per member, rows that sum to 1.
        weights: one per member, not negative; the members count alike if all are 0.
        method: its name; `Combination` is its signature.

    Returns:
        float32 [N,C], rows that sum to 1.

    Raises:
        ConfigurationError: the method returned another shape.
    """
    stacked = np.stack(members)
    given = np.asarray(weights if any(weights) else [1.0] * len(members), np.float64)
    share = (given / given.sum()).astype(np.float32)
    combination: Combination = find(COMBINERS, method)
    combined = combination(stacked, share)
    if combined.shape != stacked.shape[1:] or not np.isfinite(combined).all():
        raise ConfigurationError(f"combiner.method: {method} returned no probabilities of shape {stacked.shape[1:]}")
    return combined


def without(
    members: Sequence[Probabilities], weights: Sequence[float], method: str, combined: Probabilities
) -> list[dict[int, int]]:
    """Find the images that get another class than the `combined` one without a member.

    Returns:
        For each member by row, the class without the member.
    """
    found: list[dict[int, int]] = [{} for _ in members]
    winners = np.array([scores.argmax(axis=1) for scores in members])
    # Of others, the class is every member's.
    is_open = (winners != winners[0]).any(axis=0) if method in UNANIMOUS else np.ones(len(combined), bool)
    rows = np.flatnonzero(is_open).tolist()
    if len(members) < 2 or not rows:
        return found
    classes, some = combined[rows].argmax(axis=1), np.stack(members)[:, rows]
    for member, changed in enumerate(found):
        rest = combine(list(np.delete(some, member, axis=0)), list(np.delete(weights, member)), method)
        theirs = rest.argmax(axis=1)
        changed.update((rows[place], int(theirs[place])) for place in np.flatnonzero(theirs != classes).tolist())
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
        check_weights(settings.weights or self._own_weights, list(self._own_weights))

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
        combined = np.empty(next(iter(by_member.values())).shape, np.float32)
        predictions: list[dict[str, MemberPrediction]] = [{} for _ in combined]
        keeps_all = [item.options.members for item in work.batch.items if item.error is None]
        weights = self.settings.weights or self._own_weights
        for names, rows in _by_members(by_member):
            members, shares = [by_member[name][rows] for name in names], [weights.get(name, 0.0) for name in names]
            combined[rows] = together = combine(members, shares, self.settings.method)
            changed = without(members, shares, self.settings.method, together)
            for name, scores, others in zip(names, members, changed, strict=True):
                pairs = zip(scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist(), strict=True)
                for place, (row, (index, probability)) in enumerate(zip(rows.tolist(), pairs, strict=True)):
                    kept = scores[place].tobytes() if keeps_all[row] else b""
                    predictions[row][name] = MemberPrediction(index, probability, kept, others.get(place))
        noted = [{"predictions": each} for each in predictions]
        return work.done(combined, noted.__getitem__)


def _by_members(by_member: MemberProbabilities) -> list[tuple[list[str], NDArray[np.int64]]]:
    """Group rows by the members that answered them; each group has the members' names and the rows."""
    names, answered = list(by_member), np.stack([~np.isnan(scores[:, 0]) for scores in by_member.values()])
    if answered.all():
        return [(names, np.arange(answered.shape[1]))]
    patterns, which = np.unique(answered, axis=1, return_inverse=True)
    groups = enumerate(patterns.T)
    return [(list(compress(names, pattern)), np.flatnonzero(which == number)) for number, pattern in groups]

"""The combiner: the members' probabilities in, the ensemble's out."""

from __future__ import annotations

import time

import numpy as np

from graph.batch import Batch, Probabilities
from graph.config import CombinerSettings, check_weights
from graph.errors import ConfigurationError

# Below this a probability is taken as this, so that one member's zero does not veto a class in the geometric mean.
SMALLEST = np.float32(1e-7)
# The mean's part in a majority vote: too small to outweigh a vote, large enough for float32 to tell a tie by.
TIE_BREAK = np.float32(1e-4)


def combine(members: list[Probabilities], weights: list[float], method: str) -> Probabilities:
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
    """Combines the members' batches into one; an image that failed in any member has failed."""

    def __init__(self, settings: CombinerSettings, weights: dict[str, float]) -> None:
        """Set the method and the members' own weights, by name, that `settings.weights` replaces when given."""
        self._own_weights = weights
        self.check(settings)
        self.settings = settings

    def check(self, settings: CombinerSettings) -> None:
        """Raise ConfigurationError unless every weight is a member's and one is above 0."""
        try:
            check_weights(settings.weights or self._own_weights, list(self._own_weights))
        except ValueError as err:
            raise ConfigurationError(str(err)) from err

    async def __call__(self, outputs: dict[str, Batch[Probabilities]]) -> Batch[Probabilities]:
        """Each member's probabilities, float32 [N,C] by member name, to the ensemble's, float32 [N,C].

        Raises:
            ConfigurationError: members disagree on the number of classes.
        """
        start_ns = time.time_ns()
        aligned = _align(list(outputs.values()))
        first = aligned[0]
        merged = Batch(
            first.payload,
            first.requests,
            first.errors,
            {name: version for batch in aligned for name, version in batch.versions.items()},
            # What came before the members, every one of their batches has.
            [*first.timings, *(timing for batch in aligned[1:] for timing in batch.timings[-1:])],
        )
        if not first.live:
            return merged.advance("combine", start_ns, np.empty((0, 0), np.float32))
        counts = {name: batch.payload.shape[1] for name, batch in zip(outputs, aligned, strict=True)}
        if len(set(counts.values())) > 1:
            raise ConfigurationError(f"members disagree on the number of classes: {counts}")
        payloads = [batch.payload for batch in aligned]
        weights = self.settings.weights or self._own_weights
        combined = combine(payloads, [weights.get(name, 0.0) for name in outputs], self.settings.method)
        for name, payload in zip(outputs, payloads, strict=True):
            winners = payload.argmax(axis=1)
            for row, position in enumerate(first.live):
                first.requests[position].votes[name] = int(winners[row]), float(payload[row, winners[row]])
        return merged.advance("combine", start_ns, combined)


def _align(batches: list[Batch[Probabilities]]) -> list[Batch[Probabilities]]:
    """The batches without the rows of requests that failed in any of them."""
    errors = {position: error for batch in batches for position, error in batch.errors.items()}
    return [batch.fail(errors) for batch in batches]

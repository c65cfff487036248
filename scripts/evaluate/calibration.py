"""Calibration: how far probabilities are from the share of right answers, and what brings them nearer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from deployments.repository.network import SMALLEST
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import Truth

BINS = 15
# The temperatures that are looked for, and by how many bisections.
LOWEST, HIGHEST, BISECTIONS = 0.05, 20.0, 30
# Weights are found when no step changes one by more than this.
NEARBY, MOST_STEPS = 1e-6, 5_000


def calibration_error(sure: Probabilities, right: NDArray[np.bool_]) -> float:
    """Compute the expected calibration error, in percent to two decimals.

    That is the mean difference between the probability of an answer and the share of answers that are right, in 15
    bins of equal width (Guo et al. 2017, arXiv:1706.04599).

    Args:
        sure: the probability of each answer, [N].
        right: whether each answer is right, bool [N].
    """
    bins = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    excess = np.bincount(bins, weights=sure - right.astype(np.float64), minlength=BINS)
    return round(100 * float(np.abs(excess).sum()) / len(sure), 2)


def log_loss(probabilities: Probabilities, labels: Truth) -> float:
    """Compute the mean negative log-likelihood, in nats, of labels, [N], by probabilities, [N,C]."""
    return -float(np.log(_of_labels(probabilities, labels)).mean())


def temperature(probabilities: Probabilities, labels: Truth) -> float:
    """Fit the temperature, to four digits, with which probabilities, [N,C], give labels, [N], the least log loss.

    The loss is convex in the reciprocal of the temperature (Guo et al. 2017, arXiv:1706.04599): its slope there, the
    mean logarithm that is expected less that of the labels, changes its sign once.

    Raises:
        ScriptError: it is not between 0.05 and 20.
    """
    scores = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST))
    target = scores[np.arange(len(labels)), labels].mean()
    low, high = LOWEST, HIGHEST
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high))
        raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / middle)
        expected = ((raised * scores).sum(axis=1) / raised.sum(axis=1)).mean()
        low, high = (middle, high) if expected > target else (low, middle)
    if min(low / LOWEST, HIGHEST / high) < 1.001:
        raise ScriptError(
            f"no temperature from {LOWEST} to {HIGHEST} fits: the model has all of these images right, or no more than "
            "guessing would have; use other images"
        )
    return float(f"{low:.4g}")


def mixture_weights(members: Sequence[Probabilities], labels: Truth) -> NDArray[np.float64]:
    """Fit the weights, which sum to 1, of the weighted mean of members, [N,C] each, with the least log loss.

    They are found by expectation-maximization, which converges, because the log-likelihood is concave in them.
    """
    likelihoods = np.stack([_of_labels(each, labels) for each in members])
    weights = np.full(len(members), 1 / len(members))
    for _ in range(MOST_STEPS):
        parts = weights[:, None] * likelihoods
        before, weights = weights, (parts / parts.sum(axis=0)).mean(axis=1)
        if np.abs(weights - before).max() < NEARBY:
            break
    return weights


def _of_labels(probabilities: Probabilities, labels: Truth) -> NDArray[np.float64]:
    """Look up the probability of each label, [N]."""
    found: NDArray[np.float64] = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.maximum(found, SMALLEST)

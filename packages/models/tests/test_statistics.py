from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.contract.payload import Probabilities
from ensemble_models.statistics import Interval, Truth, calibration_error, log_loss, temperature
from scripts.errors import ScriptError

IMAGES, CLASSES = 10_000, 4


def softened(probabilities: Probabilities, temperature: float) -> Probabilities:
    raised = probabilities.astype(np.float64) ** (1 / temperature)
    return (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)


def said(seed: int, spread: float = 1.5) -> Probabilities:
    """What a classifier answers: probabilities of any sureness."""
    scores = np.exp(np.random.default_rng(seed).normal(0, spread, (IMAGES, CLASSES)))
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)


def drawn(probabilities: Probabilities) -> Truth:
    """Labels of which each probability is the true one."""
    edges = probabilities.astype(np.float64).cumsum(axis=1)
    return (edges[:, :-1] < np.random.default_rng(9).random((len(edges), 1))).sum(axis=1)


def error(probabilities: Probabilities, labels: Truth) -> float:
    return calibration_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels)


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_true_temperature_is_found(true: float) -> None:
    """Labels that are as probable as softened answers say, and not as the answers do."""
    answers = said(0)
    labels = drawn(softened(answers, true))
    found = temperature(answers, labels)
    assert found == pytest.approx(true, rel=0.05)
    calibrated = softened(answers, found)
    assert error(calibrated, labels) < 1.5
    assert true == 1 or error(answers, labels) > 10
    losses = [log_loss(softened(answers, found * factor), labels) for factor in (0.97, 1, 1.03)]
    assert losses[1] == min(losses)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), spread=st.floats(0.3, 2), once=st.floats(0.5, 2))
def test_whatever_softened_the_answers_before_the_same_is_reached(seed: int, spread: float, once: float) -> None:
    answers = said(seed, spread)[:2000]
    labels = drawn(answers)
    before = softened(answers, once)
    assert temperature(before, labels) * once == pytest.approx(temperature(answers, labels), rel=1e-3)
    # Calibrated answers need no temperature.
    assert temperature(softened(before, temperature(before, labels)), labels) == pytest.approx(1, abs=2e-3)


def test_images_that_determine_no_temperature_are_refused() -> None:
    answers = said(0)
    for labels in (answers.argmax(axis=1), answers.argmin(axis=1)):
        with pytest.raises(ScriptError, match="no temperature"):
            temperature(answers, labels)


def test_the_loss_of_an_impossible_label_is_finite() -> None:
    answers = np.array([[1, 0], [1, 0], [1, 0], [1, 0]], np.float32)
    labels = np.array([0, 0, 0, 1])
    assert log_loss(answers, labels) == pytest.approx(-np.log(1e-30) / 4)


def test_the_error_is_how_far_probabilities_are_from_the_share_that_is_right() -> None:
    right = np.arange(10) < 6
    assert calibration_error(np.full(10, 0.8, np.float32), right) == 20.0
    assert calibration_error(np.full(10, 0.6, np.float32), right) == 0.0
    # Too sure of some and not sure enough of others, in bins of their own: that does not cancel out.
    sure = np.where(right, 0.9, 0.1).astype(np.float32)
    assert calibration_error(sure, right) == 10.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=50))
def test_the_error_is_a_percentage_and_at_least_that_of_the_mean(answers: list[tuple[float, bool]]) -> None:
    sure, right = np.array([each for each, _ in answers], np.float32), np.array([each for _, each in answers])
    found = calibration_error(sure, right)
    assert 100 * abs(sure.mean(dtype=np.float64) - right.mean()) - 0.01 <= found <= 100


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0] * 300, (0, -1, 1)),
        ([1.0] * 300, (100, 99, 100)),
        ([0.0], (0, -100, 100)),
        ([-1.0], (-100, -100, 100)),
        ([1.0, -1.0], (0, -100, 100)),
    ],
)
def test_few_images_have_a_wide_interval_within_what_a_difference_can_be(values, expected):
    found = Interval.paired(np.array(values))
    assert (found.mean, found.low, found.high) == pytest.approx(expected)

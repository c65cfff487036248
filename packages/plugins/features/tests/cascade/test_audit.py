import logging

import numpy as np
import pytest
from pydantic import ValidationError

from deployments.contract.item import Item
from ensemble_features.cascade.audit import FEWEST, WINDOW, Audit, interval
from ensemble_features.cascade.feature import exit_stats
from ensemble_features.cascade.flow import Stage
from ensemble_features.cascade.settings import CascadeSettings
from tests.batches import batch


def audit(exit_at=(0.5, 0.6), share=1.0, at_most=None, tighten=False):
    return Audit(("a", "b"), exit_at, share, at_most, tighten, seed=0)


def test_a_share_of_the_exits_is_drawn():
    drawn = [len(audit(share=0.1).draw(range(10_000))), len(audit(share=1.0).draw(range(100)))]
    assert 900 < drawn[0] < 1100
    assert drawn[1] == 100


def test_the_interval_is_wilsons():
    # R: binom::binom.wilson(8, 100)
    low, mean, high = interval(8, 100)
    assert (round(low, 4), mean, round(high, 4)) == (0.0411, 0.08, 0.15)
    assert interval(0, FEWEST - 1) is None
    assert interval(0, 100)[0] == 0.0


def test_each_stage_has_a_figure_of_its_own():
    found = audit()
    for _ in range(50):
        found.note(0, 0.9, False)
    for number in range(40):
        found.note(1, 0.9, number < 10)
    found.drop(1, 2)
    assert found.report() == [("a", 0.5, 0, 50), ("b", 0.6, 10, 40)]
    assert found._audited.counts["b", "differs"] == 10
    assert found._audited.counts["b", "dropped"] == 2


def test_a_figure_is_of_the_last_exits():
    found = audit()
    for number in range(2 * WINDOW):
        found.note(0, 0.9, number < WINDOW)
    assert found.report()[0][2:] == (0, WINDOW)


def test_while_the_bound_is_broken_the_threshold_rises_to_where_it_holds(caplog):
    found = audit(at_most=0.05, tighten=True)
    with caplog.at_level(logging.WARNING):
        # Of the less sure half, every fifth differs; of the surer one none.
        for number in range(400):
            found.note(0, 0.6 if number % 2 else 0.9, number % 2 == 1 and number % 5 == 0)
    assert 0.6 < found.exit_at[0] <= 0.9
    assert found.exit_at[1] == 0.6
    assert list(found._tightened.counts) == [("a",)]
    assert "the exits at 'a' differ" in caplog.text
    _, _, differing, total = found.report()[0]
    assert differing <= 0.05 * total


def test_an_exit_that_is_none_any_more_is_counted_and_tells_nothing():
    found = audit(exit_at=(0.8, 0.8))
    for _ in range(50):
        found.note(0, 0.7, True)
    assert found.report()[0][2:] == (0, 0)


def test_a_stage_that_is_never_right_ends_nothing_any_more():
    found = audit(at_most=0.01, tighten=True)
    for _ in range(100):
        found.note(0, 0.9, True)
    assert found.exit_at[0] > 0.9


@pytest.mark.parametrize("sure", [np.float32(0.7), np.float32(1)])
def test_exits_that_are_equally_sure_leave_no_more_once_the_threshold_has_risen_above_them(sure):
    found = audit(at_most=0.01, tighten=True)
    scores = np.array([[sure, 0]], np.float32)
    stage = Stage(batch({"a": scores}, Item()), batch(scores, Item()), [0])
    for _ in range(3 * FEWEST):
        found.note(0, float(sure), True)
    assert stage.sure(np.array(found.exit_at[:1], np.float32)) == []
    assert found._tightened.counts["a",] == 1


@pytest.mark.parametrize("at_most", [None, 0.05])
def test_without_tighten_a_threshold_stays(at_most):
    found = audit(at_most=at_most)
    for _ in range(100):
        found.note(0, 0.9, True)
    assert found.exit_at == [0.5, 0.6]


def test_a_number_is_a_share_and_tighten_needs_a_bound():
    def audited(value):
        cascade = {"order": ["a", "b"], "exit_at": [0.5], "audit": value}
        return CascadeSettings.model_validate(cascade).audit

    assert audited(0.01).share == 0.01
    for wrong in (0, 2, {"share": 0.1, "tighten": True}, {"share": 0.1, "at_most": 1.5}):
        with pytest.raises(ValidationError):
            audited(wrong)


def test_the_figures_of_stats():
    audited = audit(at_most=0.1)
    for differs in (True, False, False, False):
        audited.note(0, 0.9, differs)
    figures = exit_stats(("a", "b"), (0.5, 0.6), audited)
    assert (figures["a"].exit_at, figures["a"].at_most) == (0.5, 0.1)
    assert (figures["a"].differs.count, figures["a"].differs.total) == (1, 4)
    assert figures["b"].differs.share is None
    assert exit_stats(("first", "second"), (0.5, 0.6), None)["second"].differs is None

import threading
from collections import Counter
from urllib.parse import unquote

import numpy as np
import pytest

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.counting import MOST_VALUES, OTHER, TaggedCounter
from deployments.contract.item import Item, MemberPrediction
from deployments.observe import metrics
from deployments.observe.metrics import CounterReport, Metrics, TaggedGauge, TaggedHistogram
from tests.metrics import recorded


def test_answers_are_counted_by_their_class_and_by_who_agrees(monkeypatch):
    told = recorded(monkeypatch, metrics)
    best = Classification("cat", 1, 0.5, top=(), model_versions={}, trace_id="0" * 32)
    items = tuple(Item(predictions={"a": MemberPrediction(index, 0.5)}) for index in (1, 1, 0))
    Metrics().batch(Batch([Answer(best, np.zeros(2, np.float32))] * 3, items), 0.0)
    counts = Counter()
    for name, value, tags in told:
        counts[name, *tags.values()] += value
    assert counts["ensemble_predictions", "cat"] == 3
    assert counts["ensemble_member_predictions", "a", "true"] == 2
    assert counts["ensemble_member_predictions", "a", "false"] == 1


# A class may be called anything.
NAMES = ["cat", "猫", "Ærø", "50 %", "two\nlines", 'a "b" \\ c', "\ud800", "other"]


@pytest.mark.parametrize("name", NAMES)
def test_ray_takes_every_name(name):
    counter = TaggedCounter("ensemble_names", "Ray's own.", "label")
    counter.add(name, count=2)
    CounterReport()()
    assert counter.counts == {(name,): 2}
    TaggedGauge("ensemble_names_now", "Ray's own.", "label").set(1.0, name)
    TaggedHistogram("ensemble_names_seconds", "Ray's own.", [1.0], "label").observe(0.5, name)


def test_a_name_can_be_read_in_what_ray_is_told(monkeypatch):
    told = recorded(monkeypatch, metrics)
    counter = TaggedCounter("ensemble_names", "", "label")
    for name in NAMES:
        counter.add(name)
    texts = [tags["label"] for _, _, tags in told]
    assert texts[:4] == ["cat", "%E7%8C%AB", "%C3%86r%C3%B8", "50 %25"]
    assert all(text.isascii() and text.isprintable() for text in texts)
    assert [unquote(text) for text in texts] == [name.replace("\ud800", "?") for name in NAMES]


def test_a_metric_has_a_bounded_number_of_series_and_loses_no_count(monkeypatch):
    told = recorded(monkeypatch, metrics)
    counter = TaggedCounter("ensemble_names", "", "label", "right")
    for number in (*range(1000), *range(1000)):
        counter.add(f"class {number}", number % 2 == 0)
    series = {tuple(tags.values()) for _, _, tags in told}
    assert len(series) == MOST_VALUES + 2
    assert sum(value for _, value, _ in told) == counter.counts.total() == 2000
    assert sum(value for _, value, tags in told if tags["label"] == OTHER) == 2000 - 2 * MOST_VALUES
    # Its process keeps no more of them.
    assert len(counter.counts) == MOST_VALUES + 2
    assert counter.counts["class 99", False] == 2
    assert counter.counts[OTHER, False] == 1000 - MOST_VALUES


def test_what_was_counted_since_the_last_report_is_told(monkeypatch):
    add, told = TaggedCounter.add, recorded(monkeypatch, metrics)
    counter, report = TaggedCounter("ensemble_names", "", "label"), CounterReport()
    monkeypatch.setattr(metrics, "COUNTERS", [counter])
    for count in (2, 0, 3):
        add(counter, "cat")
        add(counter, "cat", count=count)
        report()
        report()
    assert [(value, tags) for _, value, tags in told] == [(count, {"label": "cat"}) for count in (3, 1, 4)]


def test_a_report_that_fails_once_is_made_again(monkeypatch):
    monkeypatch.setattr(metrics, "STATE_INTERVAL_S", 0.001)
    calls, again = [], threading.Event()

    def report():
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        again.set()

    metrics.report_periodically(report, "metrics")
    assert again.wait(10)

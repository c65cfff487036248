import threading

import numpy as np

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.observe import metrics
from deployments.observe.metrics import Metrics
from tests.metrics import recorded


def test_exits_are_counted_by_the_last_member_asked(monkeypatch):
    told = recorded(monkeypatch, metrics)
    best = Classification("cat", 1, 0.5, top=(), model_versions={}, trace_id="0" * 32)
    items = (Item(asked=("a",)), Item(asked=("a", "b")), Item(asked=("a",)), Item())
    Metrics().batch(Batch([Answer(best, np.zeros(2, np.float32))] * 4, items), 0.0)
    exits = {tags["member"]: value for name, value, tags in told if name == "ensemble_cascade_exits"}
    assert exits == {"a": 2, "b": 1}


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

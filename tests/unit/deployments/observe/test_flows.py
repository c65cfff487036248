import numpy as np

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.observe import flows, metrics
from deployments.observe.flows import AuditMetrics, CacheMetrics
from deployments.observe.metrics import Metrics


class Recorder:
    """Stands for a metric of Ray's and notes what it is told."""

    told = None

    def __init__(self, name, **_):
        self.name = name

    def note(self, value=1, tags=None):
        self.told.append((self.name, value, tags))

    inc = set = observe = note


def recorded(monkeypatch, module):
    for kind in ("Counter", "Gauge", "Histogram"):
        if hasattr(module, kind):
            monkeypatch.setattr(module, kind, Recorder)
    Recorder.told = []
    return Recorder.told


def test_what_a_cache_does_is_counted(monkeypatch):
    told = recorded(monkeypatch, flows)
    counts = CacheMetrics()
    counts.cache(2, 0, 1, 0.5)
    counts.cache(0, 3, 0, 0.0)
    images = [(value, tags["result"]) for name, value, tags in told if name == "ensemble_cache_images"]
    assert images == [(2, "hit"), (1, "passed"), (3, "miss")]
    assert [value for name, value, _ in told if name == "ensemble_cache_saved_seconds"] == [0.5]


def test_what_an_audit_found_is_told_with_its_interval_and_the_bound(monkeypatch):
    told = recorded(monkeypatch, flows)
    monkeypatch.setattr(flows, "again_and_again", lambda report, _: report())

    class Audit:
        def report(self):
            return [("a", 0.7, (0.01, 0.02, 0.03)), ("b", 0.8, None)]

    AuditMetrics(0.02).follow(Audit())
    shares = {tags["bound"]: value for name, value, tags in told if name == "ensemble_cascade_audit_share"}
    assert shares == {"low": 0.01, "mean": 0.02, "high": 0.03}
    thresholds = {tags["member"]: value for name, value, tags in told if name == "ensemble_cascade_exit_at"}
    assert thresholds == {"a": 0.7, "b": 0.8}
    assert ("ensemble_cascade_audit_at_most", 0.02, None) in told


def test_exits_are_counted_by_the_last_member_asked(monkeypatch):
    told = recorded(monkeypatch, metrics)
    best = Classification("cat", 1, 0.5, top=(), model_versions={}, trace_id="0" * 32)
    items = (Item(asked=("a",)), Item(asked=("a", "b")), Item(asked=("a",)), Item())
    Metrics().batch(Batch([Answer(best, np.zeros(2, np.float32))] * 4, items), 0.0)
    exits = {tags["member"]: value for name, value, tags in told if name == "ensemble_cascade_exits"}
    assert exits == {"a": 2, "b": 1}

"""Stands for Ray's metrics."""

from deployments.observe.metrics import TaggedCounter


class Recorder:
    """Stands for a metric of Ray's and notes what it is told."""

    told = None

    def __init__(self, name, **_):
        self.name = name

    def note(self, value=1, tags=None):
        self.told.append((self.name, value, tags))

    inc = set = observe = note


def recorded(monkeypatch, module):
    """What a module tells Ray from now on; a counter at once, and not once a second."""
    add = TaggedCounter.add

    def told_at_once(self, *values, count=1):
        add(self, *values, count=count)
        self.report()

    monkeypatch.setattr(TaggedCounter, "add", told_at_once)
    monkeypatch.setattr("deployments.observe.metrics.COUNTERS", [None])
    monkeypatch.setattr("deployments.observe.metrics.report_periodically", lambda *_: None)
    for kind in ("Counter", "Gauge", "Histogram"):
        if hasattr(module, kind):
            monkeypatch.setattr(module, kind, Recorder)
    Recorder.told = []
    return Recorder.told

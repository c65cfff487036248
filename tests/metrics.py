"""Stands for Ray's metrics."""

from deployments.contract.counting import TaggedCounter


class Recorder:
    """Stands for a metric of Ray's and notes what it is told."""

    told = None

    def __init__(self, name, **_):
        self.name = name

    def note(self, value=1, tags=None):
        self.told.append((self.name, value, tags))

    inc = set = observe = note


def recorded(monkeypatch, module):
    """What a module tells Ray from now on; what is counted, at once."""
    add = TaggedCounter.add

    def told_at_once(self, *values, count=1):
        add(self, *values, count=count)
        Recorder.told.extend((self.name, count, tags) for tags, count in self.unreported())

    monkeypatch.setattr(TaggedCounter, "add", told_at_once)
    for kind in ("Counter", "Gauge", "Histogram"):
        if hasattr(module, kind):
            monkeypatch.setattr(module, kind, Recorder)
    Recorder.told = []
    return Recorder.told

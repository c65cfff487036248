from deployments.contract.item import Item
from deployments.observe import metrics as observed
from ensemble_features.canary import feature as metrics
from ensemble_features.canary.feature import counters, follow
from ensemble_features.canary.settings import CanaryConfig
from ensemble_features.canary.trial import Trial as CanaryTrial
from tests.metrics import recorded


def test_what_a_canary_does_is_counted_by_version(monkeypatch):
    told = recorded(monkeypatch, observed)
    monkeypatch.setattr(metrics, "report_periodically", lambda report, _: report())

    class Trial:
        name, share, rolled_back = "a", 0.0, "latency"

    counts = counters()
    rolled_back = []
    follow([Trial()], rolled_back.append)
    assert [each.name for each in rolled_back] == ["a"]
    trial = CanaryTrial("a", CanaryConfig(version=2, share=0.5), counts)
    trial.note("canary", [Item()] * 5, [False, True, False, True, False], 0.25)
    trial.predicted(False, 2, True)
    counts.rollbacks.add("a", "latency")
    of = {"member": "a", "role": "canary"}
    assert told == [
        ("ensemble_canary_share", 0.0, {"member": "a"}),
        ("ensemble_canary_rolled_back", 1.0, {"member": "a", "reason": "latency"}),
        ("ensemble_canary_images", 3, {**of, "failed": "false"}),
        ("ensemble_canary_images", 2, {**of, "failed": "true"}),
        ("ensemble_canary_duration_seconds", 0.25, of),
        ("ensemble_canary_predictions", 1, {"member": "a", "role": "stable", "version": "2", "agrees": "true"}),
        ("ensemble_canary_rollbacks", 1, {"member": "a", "reason": "latency"}),
    ]

from graph.capabilities.canary import metrics
from graph.capabilities.canary.metrics import CanaryMetrics
from tests.metrics import recorded


def test_what_a_canary_does_is_counted_by_version(monkeypatch):
    told = recorded(monkeypatch, metrics)
    monkeypatch.setattr(metrics, "again_and_again", lambda report, _: report())

    class Trial:
        name, share = "a", 0.05

    counts = CanaryMetrics()
    counts.follow([Trial()])
    counts.asked("a", "canary", 5, 2, 0.25)
    counts.voted("a", "stable", "2", True)
    counts.rolled_back("a", "latency")
    of = {"member": "a", "role": "canary"}
    assert told == [
        ("ensemble_canary_share", 0.05, {"member": "a"}),
        ("ensemble_canary_images", 3, {**of, "failed": "false"}),
        ("ensemble_canary_images", 2, {**of, "failed": "true"}),
        ("ensemble_canary_duration_seconds", 0.25, of),
        ("ensemble_canary_predictions", 1, {"member": "a", "role": "stable", "version": "2", "agrees": "true"}),
        ("ensemble_canary_rollbacks", 1, {"member": "a", "reason": "latency"}),
    ]

from deployments.observe import rollout
from deployments.observe.rollout import CanaryMetrics, FeedbackMetrics, ShadowMetrics
from tests.unit.deployments.observe.test_flows import recorded


def test_what_a_canary_does_is_counted_by_version(monkeypatch):
    told = recorded(monkeypatch, rollout)
    monkeypatch.setattr(rollout, "again_and_again", lambda report, _: report())

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


def test_what_a_shadow_and_labels_tell_is_counted(monkeypatch):
    told = recorded(monkeypatch, rollout)
    shadow, labels = ShadowMetrics(), FeedbackMetrics()
    shadow.shadowed("s", "dropped", 3)
    shadow.compared("s", "ensemble", False)
    labels.labelled("accepted")
    labels.judged("version", "a", "3", True)
    assert told == [
        ("ensemble_shadow_images", 3, {"member": "s", "result": "dropped"}),
        ("ensemble_shadow_predictions", 1, {"member": "s", "other": "ensemble", "agrees": "false"}),
        ("ensemble_feedback_labels", 1, {"result": "accepted"}),
        ("ensemble_feedback_answers", 1, {"kind": "version", "name": "a", "version": "3", "right": "true"}),
    ]

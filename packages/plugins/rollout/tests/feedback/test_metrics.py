from deployments.observe import metrics
from ensemble_rollout.feedback.feature import counters
from tests.metrics import recorded


def test_what_labels_tell_is_counted(monkeypatch):
    told = recorded(monkeypatch, metrics)
    labels = counters()
    labels.labels.add("accepted")
    labels.answers.add("version", "a", "3", True)
    assert told == [
        ("ensemble_feedback_labels", 1, {"result": "accepted"}),
        ("ensemble_feedback_answers", 1, {"kind": "version", "name": "a", "version": "3", "right": "true"}),
    ]

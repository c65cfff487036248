from deployments.observe import metrics
from ensemble_features.feedback.store import FeedbackSettings, FeedbackStore
from ensemble_features.record import Record
from tests.metrics import recorded


def test_what_labels_tell_is_counted(monkeypatch):
    told = recorded(monkeypatch, metrics)
    found = FeedbackStore(FeedbackSettings(), ("cat", "dog"))
    found.remember("r", 0, Record(1, {}, last="a"))
    found.take("r", "dog")
    assert told == [
        ("ensemble_feedback_labels", 1, {"result": "accepted"}),
        ("ensemble_feedback_answers", 1, {"kind": "ensemble", "name": "", "version": "", "right": "true"}),
        ("ensemble_feedback_answers", 1, {"kind": "exit", "name": "a", "version": "", "right": "true"}),
    ]

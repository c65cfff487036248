import pytest

from deployments.observe import metrics as observed
from ensemble_features.cascade import feature as metrics
from ensemble_features.cascade.feature import follow_audit
from tests.metrics import recorded


def test_what_an_audit_found_is_told_with_its_interval_and_the_bound(monkeypatch):
    told = recorded(monkeypatch, observed)
    monkeypatch.setattr(metrics, "report_periodically", lambda report, _: report())

    class Audit:
        at_most = 0.02

        def report(self):
            return [("a", 0.7, 2, 100), ("b", 0.8, 0, 10)]

    follow_audit(Audit())
    shares = {tags["bound"]: value for name, value, tags in told if name == "ensemble_cascade_audit_share"}
    assert shares == {"low": pytest.approx(0.0055, abs=1e-4), "mean": 0.02, "high": pytest.approx(0.07, abs=1e-4)}
    thresholds = {tags["member"]: value for name, value, tags in told if name == "ensemble_cascade_exit_at"}
    assert thresholds == {"a": 0.7, "b": 0.8}
    assert ("ensemble_cascade_audit_at_most", 0.02, {}) in told

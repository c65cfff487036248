from deployments.observe import metrics
from ensemble_features.shadow.flow import ShadowCounters
from tests.metrics import recorded


def test_what_a_shadow_does_is_counted(monkeypatch):
    told = recorded(monkeypatch, metrics)
    shadow = ShadowCounters()
    shadow.images.add("s", "dropped", count=3)
    shadow.predictions.add("s", "ensemble", False)
    assert told == [
        ("ensemble_shadow_images", 3, {"member": "s", "result": "dropped"}),
        ("ensemble_shadow_predictions", 1, {"member": "s", "other": "ensemble", "agrees": "false"}),
    ]

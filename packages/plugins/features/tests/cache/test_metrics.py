from deployments.observe import metrics as observed
from ensemble_features.cache import feature
from ensemble_features.cache.feature import CacheMetrics
from tests.metrics import recorded


def test_what_a_cache_does_is_counted(monkeypatch):
    recorded(monkeypatch, feature)
    told = recorded(monkeypatch, observed)
    counts = CacheMetrics()
    counts.cache(2, 0, 1, 0.5)
    counts.cache(0, 3, 0, 0.0)
    images = [(value, tags["result"]) for name, value, tags in told if name == "ensemble_cache_images"]
    assert images == [(2, "hit"), (1, "passed"), (3, "miss")]
    assert [value for name, value, _ in told if name == "ensemble_cache_saved_seconds"] == [0.5]

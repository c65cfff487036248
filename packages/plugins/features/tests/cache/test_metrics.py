from deployments.observe import metrics as observed
from packages.plugins.features.tests.cache.test_cache import Members, asking, cache
from tests.metrics import recorded


async def test_what_a_cache_does_is_counted(monkeypatch):
    told, saved = recorded(monkeypatch, observed), []
    flow = cache(Members(), saved=saved.append)
    await flow(asking(b"1", b"2"))
    assert saved == []
    await flow(asking(b"2", b"1", b"3"))
    await flow(asking(b"1", cache="no-store"))
    images = [(value, tags["result"]) for name, value, tags in told if name == "ensemble_cache_images"]
    assert images == [(2, "miss"), (2, "hit"), (1, "miss"), (1, "passed")]
    assert [seconds > 0 for seconds in saved] == [True]

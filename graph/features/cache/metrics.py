"""Metrics of a cache."""

from __future__ import annotations

from ray.serve.metrics import Counter

from deployments.observe.metrics import TaggedCounter, TaggedGauge, report_periodically
from graph.features.cache.stores import Store


class CacheMetrics:
    """What the ingress counts of its cache."""

    def __init__(self) -> None:
        self.images = TaggedCounter(
            "ensemble_cache_images",
            "Images by the cache's result: hit, miss, or passed at the caller's wish.",
            "result",
        )
        self._saved = Counter(
            "ensemble_cache_saved_seconds",
            description="Time that decoding and the members took for images that were then cached.",
        )
        self._bytes = TaggedGauge("ensemble_cache_bytes", "Memory of the cached images.")
        self._entries = TaggedGauge("ensemble_cache_entries", "Images cached in memory.")

    def cache(self, hits: int, misses: int, passed: int, saved_s: float) -> None:
        """Count the images of a batch, and the time that was saved."""
        for result, count in (("hit", hits), ("miss", misses), ("passed", passed)):
            self.images.add(result, count=count)
        if saved_s > 0:
            self._saved.inc(saved_s)

    def follow(self, store: Store) -> None:
        """Report what the store holds."""

        def report() -> None:
            self._bytes.set(store.bytes_used)
            self._entries.set(len(store))

        report_periodically(report, "cache metrics")

"""Metrics of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.serve.metrics import Counter, Gauge

from deployments.observe.metrics import again_and_again, tag_keys

if TYPE_CHECKING:
    from graph.capabilities.cache.stores import Store


class CacheMetrics:
    """What the ingress counts of its cache."""

    def __init__(self) -> None:
        """Register every metric."""
        self._images = Counter(
            "ensemble_cache_images",
            description="Images by whether they were remembered: hit, miss, or passed by at the caller's wish.",
            tag_keys=tag_keys("result"),
        )
        self._saved = Counter(
            "ensemble_cache_saved_seconds",
            description="Time of decoding and of members that remembered images took when they were not yet.",
        )
        self._bytes = Gauge("ensemble_cache_bytes", description="What remembered images take in memory.")
        self._entries = Gauge("ensemble_cache_entries", description="Images remembered in memory.")

    def cache(self, hits: int, misses: int, passed: int, saved_s: float) -> None:
        """Count the images of a batch, and what was saved."""
        for result, count in (("hit", hits), ("miss", misses), ("passed", passed)):
            if count:
                self._images.inc(count, tags={"result": result})
        if saved_s > 0:
            self._saved.inc(saved_s)

    def follow(self, store: Store) -> None:
        """Report what the store holds."""

        def report() -> None:
            self._bytes.set(store.bytes_used)
            self._entries.set(len(store))

        again_and_again(report, "cache metrics")

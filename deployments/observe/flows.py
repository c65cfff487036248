"""Metrics of what makes the ensemble cheap: a cascade's audit, and a cache. See `metrics` for how they are exported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ray.serve.metrics import Counter, Gauge

from deployments.observe.metrics import STATE_INTERVAL_S, tag_keys


class Stored(Protocol):
    """What a cache keeps in memory."""

    @property
    def bytes_used(self) -> int:
        """Its size."""
        ...

    def __len__(self) -> int:
        """How many images."""
        ...


class Audited(Protocol):
    """What an audit knows."""

    def report(self) -> list[tuple[str, float, tuple[float, float, float] | None]]:
        """Of each stage its member, its threshold, and the share of its exits that differ: low, mean, high."""
        ...


class CacheMetrics:
    """What the door counts of its cache."""

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

    def follow(self, store: Stored) -> None:
        """Report what the store holds."""

        def report() -> None:
            self._bytes.set(store.bytes_used)
            self._entries.set(len(store))

        again_and_again(report, "cache metrics")


class AuditMetrics:
    """What the door counts of a cascade's audit."""

    def __init__(self, at_most: float | None) -> None:
        """Register every metric; `at_most` is the bound that the configuration names."""
        self._at_most = at_most
        self._audits = Counter(
            "ensemble_cascade_audits",
            description="Exits given to the members not asked: agrees, differs, or dropped.",
            tag_keys=tag_keys("member", "result"),
        )
        self._tightened = Counter(
            "ensemble_cascade_tightened",
            description="Times that the audit raised a threshold.",
            tag_keys=tag_keys("member"),
        )
        self._share = Gauge(
            "ensemble_cascade_audit_share",
            description="Share of recent exits that all members together answer otherwise, and its 95 % interval.",
            tag_keys=tag_keys("member", "bound"),
        )
        self._threshold = Gauge(
            "ensemble_cascade_exit_at", description="Thresholds in force.", tag_keys=tag_keys("member")
        )
        self._bound = Gauge("ensemble_cascade_audit_at_most", description="The bound that the configuration names.")

    def audit(self, member: str, result: str) -> None:
        """Count an exit at a member: `agrees`, `differs` or `dropped`."""
        self._audits.inc(tags={"member": member, "result": result})

    def tightened(self, member: str) -> None:
        """Count a threshold that was raised."""
        self._tightened.inc(tags={"member": member})

    def follow(self, audit: Audited) -> None:
        """Report the thresholds, and what the audit found."""

        def report() -> None:
            if self._at_most is not None:
                self._bound.set(self._at_most)
            for member, threshold, share in audit.report():
                self._threshold.set(threshold, tags={"member": member})
                for bound, value in zip(("low", "mean", "high"), share or (), strict=False):
                    self._share.set(value, tags={"member": member, "bound": bound})

        again_and_again(report, "audit metrics")


class Strained(Protocol):
    """What knows whether thresholds for load are in force."""

    is_on: bool


def follow_strain(strain: Strained) -> None:
    """Report whether thresholds for load are in force."""
    gauge = Gauge("ensemble_cascade_under_load", description="1 while the thresholds for load are in force, else 0.")
    again_and_again(lambda: gauge.set(float(strain.is_on)), "strain metrics")


def again_and_again(report: Callable[[], None], name: str) -> None:
    """From a thread, because Ray exports a gauge only while it is being set."""

    def forever() -> None:
        while True:
            report()
            time.sleep(STATE_INTERVAL_S)

    threading.Thread(target=forever, name=name, daemon=True).start()

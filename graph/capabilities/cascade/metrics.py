"""Metrics of a cascade: its audit, and its thresholds for load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.serve.metrics import Counter, Gauge

from deployments.observe.metrics import again_and_again, tag_keys

if TYPE_CHECKING:
    from graph.capabilities.cascade.audit import Audit
    from graph.capabilities.cascade.load import LoadState


class AuditMetrics:
    """What the ingress counts of a cascade's audit."""

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

    def follow(self, audit: Audit) -> None:
        """Report the thresholds, and what the audit found."""

        def report() -> None:
            if self._at_most is not None:
                self._bound.set(self._at_most)
            for member, threshold, share in audit.report():
                self._threshold.set(threshold, tags={"member": member})
                for bound, value in zip(("low", "mean", "high"), share or (), strict=False):
                    self._share.set(value, tags={"member": member, "bound": bound})

        again_and_again(report, "audit metrics")


def follow_load(load: LoadState) -> None:
    """Report whether thresholds for load are in force."""
    gauge = Gauge("ensemble_cascade_under_load", description="1 while the thresholds for load are in force, else 0.")
    again_and_again(lambda: gauge.set(float(load.is_on)), "load metrics")

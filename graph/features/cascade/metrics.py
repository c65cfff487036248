"""What is counted of a cascade: its audit and its thresholds for load for Prometheus, and its exits for `/stats`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from deployments.observe.metrics import TaggedCounter, TaggedGauge, report_periodically
from graph.features.cascade.audit import Audit
from graph.features.cascade.flow import LoadState
from graph.features.proportion import Proportion, proportion


class AuditMetrics:
    """What the ingress counts of a cascade's audit."""

    def __init__(self) -> None:
        self.audits = TaggedCounter(
            "ensemble_cascade_audits",
            "Early exits that the other members received, too: agrees, differs, or dropped.",
            *("member", "result"),
        )
        self.tightened = TaggedCounter("ensemble_cascade_tightened", "Thresholds that the audit has raised.", "member")
        self._share = TaggedGauge(
            "ensemble_cascade_audit_share",
            "Share of recent exits that all members together answer differently, and its 95 % interval.",
            *("member", "bound"),
        )
        self._threshold = TaggedGauge("ensemble_cascade_exit_at", "Thresholds in force.", "member")
        self._bound = TaggedGauge("ensemble_cascade_audit_at_most", "The configured bound of that share.")

    def follow(self, audit: Audit) -> None:
        """Report the thresholds and the results of the audit."""

        def report() -> None:
            if audit.at_most is not None:
                self._bound.set(audit.at_most)
            for member, threshold, share in audit.report():
                self._threshold.set(threshold, member)
                for bound, value in zip(("low", "mean", "high"), share or (), strict=False):
                    self._share.set(value, member, bound)

        report_periodically(report, "audit metrics")


def follow_load(load: LoadState) -> None:
    """Report whether the thresholds for load are in force."""
    gauge = TaggedGauge("ensemble_cascade_under_load", "1 while the thresholds for load are in force, else 0.")
    report_periodically(lambda: gauge.set(float(load.is_on)), "load metrics")


class ExitStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member at which a cascade may end."""

    exit_at: Annotated[float, Meta(description="the threshold in force, but for the load")]
    at_most: Annotated[float | None, Meta(description="the share of exits that may differ; absent for no bound")] = None
    differs: Annotated[
        Proportion | None, Meta(description="the audited exits that all members answer otherwise; absent for no audit")
    ] = None


def exit_stats(members: Sequence[str], exit_at: Sequence[float], audit: Audit | None) -> dict[str, ExitStats]:
    """Return the figures by member."""
    if audit is None:
        return {member: ExitStats(threshold) for member, threshold in zip(members, exit_at, strict=True)}
    return {
        member: ExitStats(threshold, audit.at_most, proportion(*counted))
        for member, threshold, counted in zip(members, audit.exit_at, audit.count_differing(), strict=True)
    }

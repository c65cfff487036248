"""A cascade: the members are asked one after the other, until those asked are sure; fewer are asked under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from deployments.contract.nodes import Node
from deployments.contract.proportion import Proportion, proportion
from deployments.ingress.protocol import Report
from deployments.observe.metrics import TaggedCounter, TaggedGauge, report_periodically
from deployments.pipeline.member_client import Member
from ensemble_features.cascade.audit import Audit, interval
from ensemble_features.cascade.flow import Cascade, LoadState
from graph.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


def follow_audit(audit: Audit) -> None:
    """Report the thresholds and the results of the audit."""
    shares = TaggedGauge(
        "ensemble_cascade_audit_share",
        "Share of recent exits that all members together answer differently: mean, and low and high of 95 %.",
        *("member", "bound"),
    )
    thresholds = TaggedGauge("ensemble_cascade_exit_at", "Threshold in force.", "member")
    at_most = TaggedGauge("ensemble_cascade_audit_at_most", "Configured bound of the audited share.")

    def report() -> None:
        if audit.at_most is not None:
            at_most.set(audit.at_most)
        for member, threshold, differing, total in audit.report():
            thresholds.set(threshold, member)
            for bound, value in zip(("low", "mean", "high"), interval(differing, total) or (), strict=False):
                shares.set(value, member, bound)

    report_periodically(report, "audit metrics")


def follow_load(loads: Sequence[LoadState]) -> None:
    """Report whether the thresholds for load are in force, for a class at least."""
    gauge = TaggedGauge("ensemble_cascade_under_load", "1 while the thresholds for load are in force, else 0.")
    report_periodically(lambda: gauge.set(float(any(load.is_on for load in loads))), "load metrics")


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
        member: ExitStats(threshold, audit.at_most, proportion(differing, total))
        for member, threshold, differing, total in audit.report()
    }


# The field of what `/stats` reports.
NAME = "cascade"


class Cascading(Feature):
    """Asks the members in the configured order."""

    order = 40
    section = "ensemble.cascade"

    def __init__(self, config: EnsembleConfig, _agreed: EnsembleSignature, _site: Site) -> None:
        assert config.ensemble.cascade is not None
        self._asking, self._settings = config.ensemble, config.ensemble.cascade
        early, exit_at, audited = self._settings.order[:-1], self._settings.exit_at, self._settings.audit
        self._audit: Audit | None = None
        if audited is not None:
            bounds = audited.share, audited.at_most, audited.tighten
            self._audit = Audit(early, exit_at, *bounds, TaggedCounter)
            follow_audit(self._audit)
        self.reports = {NAME: Report(dict[str, ExitStats], partial(exit_stats, early, exit_at, self._audit))}

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Tell whether there is a section `ensemble.cascade`."""
        return config.ensemble.cascade is not None

    @classmethod
    def decides(cls, config: EnsembleConfig) -> Any:
        """Return the settings that decide which members are called."""
        assert config.ensemble.cascade is not None
        return {
            **config.ensemble.cascade.model_dump(include={"order", "exit_at"}),
            "method": config.combiner.method,
            "weights": config.combiner.weights or config.weights,
        }

    @classmethod
    def describe(cls, config: EnsembleConfig) -> str:
        """Describe the order of the members, and when an image exits."""
        assert config.ensemble.cascade is not None
        first, *others = config.ensemble.cascade.order
        turns = (
            f"then {name} below {below:g}" for name, below in zip(others, config.ensemble.cascade.exit_at, strict=True)
        )
        return f"cascade: {', '.join((first, *turns))}"

    def asker(self, members: Mapping[str, Member], combiner: Node[Any, Any], combined: bool) -> Node[Any, Any]:
        """Make the cascade."""
        loads: Sequence[LoadState] = ()
        if (under_load := self._asking.under_load) is not None:
            # One of the usual class, and one of the lower class.
            loads = LoadState(under_load), LoadState(under_load)
            follow_load(loads)
        return Cascade(members, combiner, self._asking, self._settings, self._audit, loads, combined=combined)

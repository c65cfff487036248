"""A cascade: the members are asked one after the other, until those asked are sure; fewer are asked under load."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.counting import TaggedCounter
from deployments.contract.nodes import Node
from deployments.ingress.protocol import Report, Served, Service
from deployments.observe.metrics import TaggedGauge, report_periodically
from deployments.observe.observer import Watcher
from ensemble_features.cascade.audit import Audit, interval
from ensemble_features.cascade.flow import Cascade, LoadState
from ensemble_features.cascade.ladder import Ladder, Rung, Tolerance
from ensemble_features.cascade.section import CascadeSection
from ensemble_features.proportion import Proportion, proportion
from graph.feature import Feature, Site, Stage
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


def follow_ladder(rungs: Sequence[Rung]) -> None:
    """Report what the audit found of each rung."""
    shares = TaggedGauge(
        "ensemble_cascade_rung_share",
        "Share of a rung's images that all members answer differently: low, mean and high of 95 %, and its bound.",
        *("rung", "bound"),
    )
    withdrawn = TaggedGauge("ensemble_cascade_rung_withdrawn", "1 if the audit has withdrawn it, else 0.", "rung")

    def report() -> None:
        for rung in rungs:
            withdrawn.set(float(rung.is_held is False), str(rung.number))
            shares.set(rung.bounds.differs, str(rung.number), "at_most")
            for bound, value in zip(("low", "mean", "high"), rung.differing() or (), strict=False):
                shares.set(value, str(rung.number), bound)

    report_periodically(report, "ladder metrics")


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


class Exits(Watcher):
    """Counts the members at which images exit, and the images for which fewer members were called."""

    def __init__(self) -> None:
        self._exits = TaggedCounter(
            "ensemble_cascade_exits",
            "Images by the last member that the cascade called, and by the rung if their requests have a tolerance.",
            *("member", "rung"),
        )
        self._load_shed = TaggedCounter(
            "ensemble_cascade_load_shed", "Images for which fewer members were called, due to load."
        )

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Count the images of an answered batch."""
        for answer in batch.payload:
            self._load_shed.add(count=bool(answer.classification.load_shed))
            if asked := answer.classification.asked:
                rung = answer.classification.rung
                self._exits.add(asked[-1], "" if rung is None else str(rung.number))


class Cascading(Feature):
    """Calls the members in the configured order."""

    # Its cascade takes the place of the node that others wrap.
    order = 15
    sections = (CascadeSection,)
    options = Tolerance

    def __init__(self, config: EnsembleConfig, _agreed: EnsembleSignature, _site: Site) -> None:
        section = config.ensemble.of(CascadeSection)
        assert section.cascade is not None
        self._quorum, self._settings, self._under_load = config.ensemble, section.cascade, section.under_load
        early, exit_at, audited = self._settings.order[:-1], self._settings.exit_at, self._settings.audit
        self._audit: Audit | None = None
        if audited is not None:
            self._audit = Audit(early, exit_at, audited.share, audited.at_most, audited.tighten)
            follow_audit(self._audit)
        self._ladder = Ladder(self._settings.ladder, len(early))
        follow_ladder(self._ladder.rungs[1:])
        self.reports = {"cascade": Report(dict[str, ExitStats], partial(exit_stats, early, exit_at, self._audit))}

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Put the cascade in place of the node that calls all members."""
        if stage.kind != "asker" or stage.combiner is None:
            return node
        loads: Sequence[LoadState] = ()
        if self._under_load is not None:
            # One of the usual class, and one of the lower class.
            loads = LoadState(self._under_load), LoadState(self._under_load)
            follow_load(loads)
        return Cascade(stage.members, stage.combiner, self._quorum, self._settings, self._audit, loads, self._ladder)

    def serve(self, service: Service) -> Served:
        """Count the exits of every answer, also of a cached one; read tolerances if there is a ladder."""
        service.ingress.observer.watch(Exits())
        if self._settings.ladder:
            service.ingress.readers[Tolerance] = self._ladder.accept
        return Served()

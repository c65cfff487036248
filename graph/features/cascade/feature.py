"""A cascade: the members are asked one after the other, until those asked are sure; fewer are asked under load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from deployments.contract.nodes import Node
from deployments.ingress.extension import Report
from graph.features.cascade.audit import Audit
from graph.features.cascade.flow import Cascade, LoadState
from graph.features.cascade.metrics import AuditMetrics, ExitStats, exit_stats, follow_load
from graph.features.feature import Feature, Site
from graph.pipeline.member_client import Member
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# The field of what `/stats` reports.
NAME = "cascade"


class Cascading(Feature):
    """Asks the members in the configured order."""

    order = 40
    section = "ensemble.cascade"

    def __init__(self, config: EnsembleConfig, _agreed: EnsembleSignature, _site: Site) -> None:
        assert config.ensemble.cascade is not None
        self._asking, self._settings = config.ensemble, config.ensemble.cascade
        self._audit = self._audited()
        early, exit_at = self._settings.order[:-1], self._settings.exit_at
        self.reports = {NAME: Report(dict[str, ExitStats], partial(exit_stats, early, exit_at, self._audit))}

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Whether there is a section `ensemble.cascade`."""
        return config.ensemble.cascade is not None

    @classmethod
    def decides(cls, config: EnsembleConfig) -> Any:
        """Return what decides which members are asked."""
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
        load = self._load_state()
        return Cascade(members, combiner, self._asking, self._settings, self._audit, load, combined=combined)

    def _audited(self) -> Audit | None:
        audited = self._settings.audit
        if audited is None:
            return None
        metrics = AuditMetrics()
        early, exit_at = self._settings.order[:-1], self._settings.exit_at
        audit = Audit(early, exit_at, audited.share, audited.at_most, audited.tighten, metrics)
        metrics.follow(audit)
        return audit

    def _load_state(self) -> LoadState | None:
        if self._asking.under_load is None:
            return None
        state = LoadState(self._asking.under_load)
        follow_load(state)
        return state

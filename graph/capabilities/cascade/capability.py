"""A cascade: the members are asked one after the other, until those asked are sure; it has an audit, and eases load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from deployments.contract.nodes import Node
from graph.capabilities.capability import Capability, Planned, Site
from graph.capabilities.cascade.audit import Audit
from graph.capabilities.cascade.flow import Cascade
from graph.capabilities.cascade.load import LoadState
from graph.capabilities.cascade.metrics import AuditMetrics, follow_load
from graph.capabilities.cascade.settings import CascadeSettings, EnsembleSettings
from graph.flows.asked import Member

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig


def planned(config: EnsembleConfig, _: Agreement) -> Planned | None:
    """A cascade, if the configuration has the section `ensemble.cascade`."""
    return None if config.ensemble.cascade is None else partial(Cascading, config.ensemble, config.ensemble.cascade)


class Cascading(Capability):
    """Asks the members in the order of the configuration."""

    def __init__(self, asking: EnsembleSettings, settings: CascadeSettings, _: Site) -> None:
        """Set how members are asked."""
        self._asking, self._settings = asking, settings

    def asker(self, members: Mapping[str, Member], combiner: Node[Any, Any], combined: bool) -> Node[Any, Any]:
        """The cascade."""
        return Cascade(
            members, combiner, self._asking, self._settings, self._audit(), self._load_state(), combined=combined
        )

    def _audit(self) -> Audit | None:
        audited = self._settings.audit
        if audited is None:
            return None
        counts = AuditMetrics(audited.at_most)
        first, exit_at = self._settings.order[:-1], self._settings.exit_at
        audit = Audit(first, exit_at, audited.share, audited.at_most, audited.tighten, counts)
        counts.follow(audit)
        return audit

    def _load_state(self) -> LoadState | None:
        if self._asking.under_load is None:
            return None
        state = LoadState(self._asking.under_load)
        follow_load(state)
        return state

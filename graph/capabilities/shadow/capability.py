"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deployments.contract.nodes import Node
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.extension import Report
from graph.capabilities.capability import Capability, Site
from graph.capabilities.shadow.flow import Shadow
from graph.capabilities.shadow.metrics import ShadowMetrics, ShadowStats
from graph.flows.copies import Copying, PixelTap
from graph.flows.member import Member
from graph.flows.pipeline import Pipeline

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

SECTION = "shadows"


class Shadows(Capability):
    """Keeps pixels on their way to the members, and sends copies of them to the shadows after the answers."""

    order = 30

    def __init__(self, config: EnsembleConfig, agreed: Agreement, site: Site) -> None:
        metrics = ShadowMetrics()
        keys = {name: agreed.preprocessing[name].key for name in config.shadows}
        shadows = [
            Shadow(
                name,
                Member(site.nodes[name], keys[name]),
                ShadowSettings(share=member.share or 0.0),
                config.replaced(member),
                metrics,
            )
            for name, member in config.shadows.items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        self.interceptor = Copying(shadows, self._tap, config.ensemble.patience_ms)
        self.live = {SECTION: {shadow.name: shadow for shadow in shadows}}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in shadows})
        }

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Whether a member is a shadow."""
        return bool(config.shadows)

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """The tap, and after it the members."""
        return Pipeline(self._tap, asker)

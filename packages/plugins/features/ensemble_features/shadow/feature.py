"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from __future__ import annotations

from typing import Any

from deployments.contract.member import MemberConfig
from deployments.contract.nodes import Node
from deployments.contract.rollout import ShadowSettings
from deployments.ingress.protocol import Report
from deployments.observe.metrics import TaggedCounter
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Pipeline
from ensemble_features.record import PixelTap, ShadowInterceptor
from ensemble_features.shadow.flow import Shadow, ShadowCounters, ShadowStats
from graph.feature import Feature, Site
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


def replaced(shadow: MemberConfig, config: EnsembleConfig) -> str:
    """Return the name of the member that a shadow is compared with; empty for none."""
    alike = [member.name for member in config.voters if member.model_name == shadow.model_name]
    return shadow.replaces or next(iter(alike), "")


SECTION = "shadows"


class Shadows(Feature):
    """Keeps pixels on their way to the members, and sends copies of them to the shadows after the answers."""

    order = 30
    section = "members.*.role: shadow"

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        counted = ShadowCounters(TaggedCounter)
        keys = {name: agreed.preprocessing[name].key for name in config.shadows}
        shadows = [
            Shadow(
                name,
                Member(site.nodes[name], keys[name]),
                ShadowSettings(share=member.share or 0.0),
                replaced(member, config),
                counted,
            )
            for name, member in config.shadows.items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        self.interceptor = ShadowInterceptor(shadows, self._tap, config.ensemble.patience_ms)
        self.live = {SECTION: {shadow.name: shadow for shadow in shadows}}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in shadows})
        }

    @classmethod
    def wanted(cls, config: EnsembleConfig) -> bool:
        """Tell whether a member is a shadow."""
        return bool(config.shadows)

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """Put the tap before the members."""
        return Pipeline(self._tap, asker)

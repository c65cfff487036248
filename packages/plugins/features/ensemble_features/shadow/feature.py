"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from typing import Any

from deployments.contract.member import MemberConfig
from deployments.contract.nodes import Node
from deployments.ingress.protocol import Report, Served, Service
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Pipeline
from ensemble_features.record import PixelTap, ShadowInterceptor
from ensemble_features.shadow.flow import Shadow, ShadowCounters, ShadowSettings, ShadowStats
from ensemble_features.shadow.section import SECTION, ShadowSection, shadows
from graph.feature import Feature, Site, Stage
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature


def replaced(shadow: MemberConfig, config: EnsembleConfig) -> str:
    """Return the name of the member that a shadow is compared with; empty for none."""
    alike = [member.name for member in config.voters if member.model_name == shadow.model_name]
    return shadow.of(ShadowSection).replaces or next(iter(alike), "")


class Shadows(Feature):
    """Keeps pixels on their way to the members, and sends copies of them to the shadows after the answers."""

    order = 30
    sections = (ShadowSection,)

    def __init__(self, config: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        counted, members = ShadowCounters(), {member.name: member for member in config.members}
        keys = {name: agreed.preprocessing[name].key for name in shadows(config)}
        made = [
            Shadow(
                name,
                Member(site.nodes[name], keys[name]),
                ShadowSettings(share=section.share or 0.0),
                replaced(members[name], config),
                counted,
            )
            for name, section in shadows(config).items()
        ]
        self._tap = PixelTap(list(dict.fromkeys(keys.values())))
        self.interceptor = ShadowInterceptor(made, self._tap, config.ensemble.patience_ms)
        self._shadows = {shadow.name: shadow for shadow in made}
        self.reports = {
            SECTION: Report(dict[str, ShadowStats], lambda: {shadow.name: shadow.figures() for shadow in made})
        }

    def wrap(self, stage: Stage, node: Node[Any, Any]) -> Node[Any, Any]:
        """Put the tap before the members."""
        return Pipeline(self._tap, node) if stage.kind == "asker" else node

    def serve(self, service: Service) -> Served:
        """Let `user_config` change the share of each shadow."""
        return Served(live={SECTION: self._shadows})

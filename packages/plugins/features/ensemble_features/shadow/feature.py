"""Shadows: models that get copies of images, and whose predictions are compared with the answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from deployments.contract.member import MemberConfig
from deployments.contract.nodes import Node
from deployments.contract.sections import Fault, Section
from deployments.contract.settings import Name, Schema
from deployments.ingress.protocol import Report, Served, Service
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Pipeline
from ensemble_features.record import PixelTap, ShadowInterceptor
from ensemble_features.shadow.flow import Shadow, ShadowCounters, ShadowSettings, ShadowStats
from graph.feature import Feature, Site, Stage
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# The section of `user_config`, and the field of `/stats`.
SECTION = "shadows"


class ShadowSection(Section):
    """The fields of a member."""

    at: ClassVar[str] = "members"

    role: Literal["member", "shadow"] = Field(
        "member", description="a shadow gets copies of images, and does not change answers"
    )
    share: float | None = Field(None, ge=0, le=1, description="the share of images that a shadow gets")
    replaces: Name | None = Field(
        None, description="the member that a shadow is compared with; default: the first one of the same model"
    )

    @model_validator(mode="after")
    def _is_a_shadow(self) -> Self:
        if self.role == "shadow" and self.share is None:
            raise ValueError("share: a shadow needs one, as 0.1")
        if self.role == "member" and (self.share is not None or self.replaces is not None):
            raise ValueError("share, replaces: they belong to a shadow; set `role: shadow`")
        return self

    def beside(self, member: MemberConfig) -> Sequence[MemberConfig]:
        """Return the shadow itself."""
        return (member,) if self.is_set else ()

    def live(self, member: MemberConfig) -> Mapping[str, Mapping[str, Schema]]:
        """Return the shadow's settings."""
        return {SECTION: {member.name: ShadowSettings(share=self.share or 0.0)}} if self.is_set else {}

    def rules(self, member: MemberConfig, config: EnsembleConfig, agreed: object) -> Iterator[Fault]:
        """Find what only a member with a say can have, and an unknown member that is replaced."""
        if len(member.sections) > 1 or "weight" in member.model_fields_set:
            yield Fault("role: a shadow has no say", "remove its weight and its canary", is_refused=True)
        names = [each.name for each in config.voters]
        if self.replaces is not None and self.replaces not in names:
            yield Fault(f"replaces: no member {self.replaces!r}", f"there are {names}", is_refused=True)


def shadows(config: EnsembleConfig) -> dict[str, ShadowSection]:
    """Return the shadows' sections, by their names."""
    found = {member.name: member.of(ShadowSection) for member in config.members}
    return {name: section for name, section in found.items() if section.is_set}


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

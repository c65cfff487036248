"""The section of a member that is a shadow, its fields and its rules."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from deployments.contract.member import MemberConfig
from deployments.contract.sections import Fault, Section
from deployments.contract.settings import Name, Schema
from ensemble_features.shadow.flow import ShadowSettings
from graph.schema import EnsembleConfig

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

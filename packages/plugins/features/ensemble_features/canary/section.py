"""The section of a member's canary: its field, its rules, and its node."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from pydantic import Field, ValidationError

from deployments.contract.member import MemberConfig
from deployments.contract.sections import Fault, Section
from deployments.contract.settings import Schema, describe
from ensemble_features.canary.settings import SUFFIX, CanaryConfig, CanarySettings
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

# The section of `user_config`, and the field of `/stats`.
SECTION = "canaries"


class CanarySection(Section):
    """The field of a member."""

    at: ClassVar[str] = "members"

    canary: CanaryConfig | None = Field(None, description="another version that answers a share of the images")

    def beside(self, member: MemberConfig) -> Sequence[MemberConfig]:
        """Return the canary as a member of its own.

        Raises:
            ValueError: a member of its kind, or with its policy, can't have such a version.
        """
        if self.canary is None:
            return ()
        if getattr(member, "version_policy", "fixed") == "latest":
            raise ValueError(
                "canary: with `version_policy: latest` every image would get its version; name a `version` instead"
            )
        own = {
            "name": f"{member.name}{SUFFIX}",
            "model": member.model_name,
            "version": self.canary.version,
            "deployment": f"{member.deployment_name}{SUFFIX}",
        }
        try:
            return (type(member).model_validate({**member.model_dump(exclude_unset=True), **own}),)
        except ValidationError as err:
            raise ValueError(f"members: a canary: {describe(err)}") from err

    def live(self, member: MemberConfig) -> Mapping[str, Mapping[str, Schema]]:
        """Return the settings of the member's canary."""
        return {} if self.canary is None else {SECTION: {member.name: CanarySettings.part_of(self.canary)}}

    def rules(self, member: MemberConfig, config: EnsembleConfig, agreed: EnsembleSignature | None) -> Iterator[Fault]:
        """Find a canary that is no other version, or takes other pixels."""
        if agreed is None:
            return
        [name] = (each.name for each in self.beside(member))
        version = agreed.versions[name]
        if version is not None and version == agreed.versions[member.name]:
            yield Fault(
                f"canary: version {version} is the member's own",
                "give the member the `version` that the other images stay with",
                is_refused=True,
            )
        if agreed.preprocessing[name] != agreed.preprocessing[member.name]:
            hint = "make it a member with `role: shadow`"
            yield Fault("canary: its version wants other pixels", hint, is_refused=True)


def canaries(config: EnsembleConfig) -> dict[str, CanaryConfig]:
    """Return the canaries, by the names of their members."""
    found = {member.name: member.of(CanarySection).canary for member in config.members}
    return {name: canary for name, canary in found.items() if canary is not None}

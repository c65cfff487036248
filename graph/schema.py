"""The schema of the application's arguments: every node's configuration, and what must hold between them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, ValidationError, field_validator, model_validator

from deployments.combiner import CombinerConfig, check_weights
from deployments.contract.member import MemberConfig
from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.settings import Cpus, Placement, Schema, describe
from deployments.entry_points import FEATURES, PROTOCOLS, find_class, names
from deployments.ingress.access import AccessConfig
from deployments.ingress.protocol import Protocol
from deployments.ingress.settings import IngressSettings
from deployments.labeler import LabelerConfig
from deployments.members import Member
from deployments.repository.address import RepositoryAddress, parse_repository
from deployments.repository.repository import DEFAULT_ROOT
from deployments.transformer.transformer import TransformerConfig
from graph.sections import EnsembleSettings

# Other paths below /v2/models than the members' names.
TAKEN = frozenset({"ensemble", "stats"})
RESERVED = (INGRESS, TRANSFORMER, COMBINER, LABELER)


class EnsembleConfig(Schema):
    """The arguments of `graph.app:build`."""

    model_repository: Annotated[RepositoryAddress, PlainValidator(parse_repository)] = Field(
        DEFAULT_ROOT, description="folder or address of <name>/<version>/; default: the bundled models"
    )
    transformer: TransformerConfig = TransformerConfig()
    members: tuple[Member, ...] = Field(min_length=1, max_length=64, description="the models, each by its `kind`")
    ensemble: EnsembleSettings = EnsembleSettings()
    features: dict[str, dict[str, Any]] = Field(
        default={},
        description="features of other packages, by name or as `module:Class`, with the settings of each; a named one "
        "may stand beside these fields, too",
    )
    protocols: tuple[str, ...] = Field(
        (), description="protocols of other packages as `module:Class`, besides the installed ones"
    )
    combiner: CombinerConfig = CombinerConfig()
    labeler: LabelerConfig = LabelerConfig()
    ingress: IngressSettings = IngressSettings()
    access: AccessConfig = AccessConfig()
    cpus: Cpus | None = Field(
        None, description="CPUs of a replica of the ingress, with its inline nodes: as a member's `cpus`"
    )
    edges: Literal["direct", "handle"] = Field(
        "direct", description="how separate nodes are called: `direct` on one machine, or by `handle`"
    )
    # Read where HAProxy is started: scripts/serve/front.py.
    front: Literal["direct", "serve"] = Field(
        "direct",
        description="what receives requests: `direct`, HAProxy and the ingress itself, or `serve`, Serve's proxy",
    )

    @classmethod
    def known(cls) -> Collection[str]:
        """Return the names of fields and of features."""
        return {*cls.model_fields, *names(FEATURES)}

    @model_validator(mode="before")
    @classmethod
    def _sections_are_features(cls, given: Any) -> Any:
        """Move the sections of features that other packages bring into `features`."""
        if not isinstance(given, dict) or not (found := {*cls.known()} & given.keys() - cls.model_fields.keys()):
            return given
        features = given.get("features") or {}
        if twice := sorted(found & features.keys()):
            raise ValueError(f"{twice[0]}: `features` has it, too; remove one of them")
        sections = {name: given[name] for name in found if given[name] is not None}
        rest = {name: value for name, value in given.items() if name not in found}
        return {**rest, "features": {**features, **sections}}

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        try:
            nodes = self.nodes
        except ValidationError as err:
            raise ValueError(f"members: a canary: {describe(err)}") from err
        names = [member.name for member in nodes]
        deployments = [member.deployment_name for member in nodes]
        for kind, values in (("name", [*names, *RESERVED]), ("deployment", [*deployments, *RESERVED])):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"members: the {kind} {twice[0]!r} is used twice")
        if taken := sorted(set(names) & TAKEN):
            raise ValueError(f"members: no member can be called {taken[0]!r}; a path of the interface is")
        return self

    @field_validator("protocols")
    @classmethod
    def _protocols_are_found(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        for name in named:
            find_class(PROTOCOLS, name, Protocol)
        return named

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        names = [member.name for member in self.voters]
        if not names:
            raise ValueError("members: all are shadows; at least one must have a say")
        for name, shadow in self.shadows.items():
            if shadow.replaces is not None and shadow.replaces not in names:
                raise ValueError(f"members: {name!r}: replaces: no member {shadow.replaces!r}; there are {names}")
        if self.ensemble.quorum is not None and self.ensemble.quorum > len(names):
            raise ValueError(f"ensemble.quorum: {self.ensemble.quorum} of {len(names)} members can't answer")
        weights = self.combiner.weights or self.weights
        check_weights(weights, names)
        if self.ensemble.cascade is not None:
            self.ensemble.cascade.check({name: weights.get(name, 0.0) for name in names}, self.combiner.method)
        return self

    @model_validator(mode="after")
    def _cpus_are_of_one_process(self) -> Self:
        owners: dict[int, str] = {}
        for name, cpus in self.cpus_of.items():
            for cpu in cpus if cpus != "auto" else ():
                if owners.setdefault(cpu, name) != name:
                    raise ValueError(
                        f"cpus: {owners[cpu]!r} and {name!r} both have CPU {cpu}; give each its own, or `auto`"
                    )
        return self

    @property
    def cpus_of(self) -> dict[str, Cpus]:
        """The `cpus` of the ingress and of members that have them, by name."""
        found = {INGRESS: self.cpus, **{member.name: getattr(member, "cpus", None) for member in self.members}}
        return {name: cpus for name, cpus in found.items() if cpus is not None}

    @property
    def voters(self) -> tuple[Member, ...]:
        """The members whose predictions are combined: all but the shadows."""
        return tuple(member for member in self.members if member.role == "member")

    @property
    def spare(self) -> int:
        """How many members the quorum can do without."""
        return len(self.voters) - (self.ensemble.quorum or len(self.voters))

    @property
    def shadows(self) -> dict[str, Member]:
        """The members that get copies, by name."""
        return {member.name: member for member in self.members if member.role == "shadow"}

    @property
    def canaries(self) -> dict[str, MemberConfig]:
        """The members' canaries as members of their own, by the names of the members that have them."""
        trials = {member.name: member.trial() for member in self.members}
        return {name: trial for name, trial in trials.items() if trial is not None}

    @property
    def nodes(self) -> tuple[MemberConfig, ...]:
        """Every member, shadow and canary: the nodes that run a model."""
        return (*self.members, *self.canaries.values())

    @property
    def placements(self) -> dict[str, Placement]:
        """Where each node runs, by the name of its Serve deployment; without the ingress."""
        return {
            TRANSFORMER: self.transformer.placement,
            **{member.deployment_name: member.placement for member in self.nodes},
            COMBINER: self.combiner.placement,
            LABELER: self.labeler.placement,
        }

    @property
    def weights(self) -> dict[str, float]:
        """The members' own weights, by name."""
        return {member.name: member.weight for member in self.voters}

"""The schema of the application's arguments: every node's configuration, and what must hold between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    SerializeAsAny,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from deployments.combiner import CombinerConfig, check_weights
from deployments.contract.member import MemberConfig
from deployments.contract.names import COMBINER, INGRESS, LABELER, TRANSFORMER
from deployments.contract.sections import Fault, Section, Way, owner
from deployments.contract.settings import Cpus, Placement, Schema
from deployments.entry_points import FEATURES, PROTOCOLS, find_class, names
from deployments.ingress.access import AccessConfig
from deployments.ingress.protocol import Protocol
from deployments.ingress.settings import IngressSettings
from deployments.labeler import LabelerConfig
from deployments.members import Member
from deployments.pipeline.member_client import QuorumSettings
from deployments.repository.address import RepositoryAddress, parse_repository
from deployments.repository.repository import DEFAULT_ROOT
from deployments.transformer.transformer import TransformerConfig

# Other paths below /v2/models than the members' names.
TAKEN = frozenset({"ensemble", "stats"})
RESERVED = (INGRESS, TRANSFORMER, COMBINER, LABELER)


# In the JSON schema, where an entry's own schema stands beside `members`.
Entries = Annotated[
    dict[str, SerializeAsAny[Section]],
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "object", "additionalProperties": True}}),
]


class Owned(NamedTuple):
    """A section of a feature: where it stands in the arguments, the part that it stands in, and the section."""

    where: str
    owner: Any
    section: Section


class EnsembleConfig(Schema):
    """The arguments of `graph.app:build`."""

    model_repository: Annotated[RepositoryAddress, PlainValidator(parse_repository)] = Field(
        DEFAULT_ROOT, description="folder or address of <name>/<version>/; default: the bundled models"
    )
    transformer: TransformerConfig = TransformerConfig()
    members: tuple[Member, ...] = Field(min_length=1, max_length=64, description="the models, each by its `kind`")
    ensemble: QuorumSettings = QuorumSettings()
    features: Entries = Field(
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

    @field_validator("features", mode="plain")
    @classmethod
    def _entries_are_of_features(cls, given: Any) -> dict[str, Section]:
        if not isinstance(given, dict):
            raise ValueError("it is a mapping of a feature's name to its settings")
        entries = {name: core_schema.typed_dict_field(_schema(str(name))) for name in given}
        validator = SchemaValidator(core_schema.typed_dict_schema(entries))
        found: dict[str, Section] = validator.validate_python({name: each or {} for name, each in given.items()})
        return found

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        nodes = self.nodes
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
            raise ValueError("members: none has a say; at least one must")
        if self.ensemble.quorum is not None and self.ensemble.quorum > len(names):
            raise ValueError(f"ensemble.quorum: {self.ensemble.quorum} of {len(names)} members can't answer")
        check_weights(self.combiner.weights or self.weights, names)
        weighted = (member.name for member in self.members if "weight" in member.model_fields_set)
        if self.combiner.weights and (twice := next(weighted, None)):
            raise ValueError(f"members: {twice!r}: weight: combiner.weights has the weights of all members; remove one")
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
        """The members whose predictions are combined."""
        return tuple(member for member in self.members if member.has_say)

    @property
    def spare(self) -> int:
        """How many members the quorum can do without."""
        return len(self.voters) - (self.ensemble.quorum or len(self.voters))

    @property
    def owned(self) -> Iterator[Owned]:
        """The sections of features that the user has set."""
        parts = [("ensemble.", self.ensemble), ("access.", self.access), ("ingress.", self.ingress)]
        for where, part in (*parts, *((f"members.{member.name}.", member) for member in self.members)):
            yield from (Owned(where, part, section) for section in part.sections)
        yield from (Owned(f"{name}.", self, section) for name, section in self.features.items())

    @property
    def ways(self) -> list[Way]:
        """What features change on the way from the members to an answer."""
        return [way for each in self.owned if (way := each.section.way(self)) is not None]

    @property
    def in_turn(self) -> bool:
        """Whether the members are called one after the other, and not side by side."""
        return any(way.in_turn for way in self.ways)

    def faults(self, agreed: Any = None) -> Iterator[Fault]:
        """Find the fields of features that can't act; `agreed` has the models' signatures, once they are read."""
        for where, part, section in self.owned:
            for fault in section.rules(part, self, agreed):
                yield fault._replace(what=f"{where}{fault.what}")

    @property
    def twins(self) -> dict[str, tuple[MemberConfig, ...]]:
        """The other models of members that run beside the vote, by the names of the members."""

        def twins(member: MemberConfig) -> tuple[MemberConfig, ...]:
            beside = (each for section in member.sections for each in section.beside(member))
            return tuple(each for each in beside if each is not member)

        return {member.name: twins(member) for member in self.members}

    def owner_of(self, name: str) -> str:
        """Return the name of the member that a model belongs to, by the model's name; else the name itself."""
        found = (member for member, twins in self.twins.items() if name in [each.name for each in twins])
        return next(found, name)

    @property
    def nodes(self) -> tuple[MemberConfig, ...]:
        """Every model that has a node: the members, and their other models."""
        return (*self.members, *(each for twins in self.twins.values() for each in twins))

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

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(core)
        properties = handler.resolve_ref_schema(found)["properties"]
        for name in names(FEATURES):
            if owner(name).entry().model_fields:
                properties[name] = handler(core_schema.nullable_schema(_schema(name)))
        return found


def _schema(name: str) -> CoreSchema:
    """Return the schema of a feature's entry in `features`; raises ValueError if there is no such feature."""
    return owner(name).entry().__pydantic_core_schema__

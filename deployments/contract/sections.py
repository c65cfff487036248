"""Sections of settings that features own: fields of the configuration, their rules, and what changes live.

The core's schema names no field of a feature. A part of the configuration is `Extensible`: a field that the part's
class does not have is looked for in the sections of the installed features.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from pydantic import GetJsonSchemaHandler, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from deployments.contract.options import AddedOptions
from deployments.contract.settings import Schema
from deployments.entry_points import FEATURES, PROTOCOLS, find_class, names


class Fault(NamedTuple):
    """A field that can't act: why, and what to do; the configuration is refused, or else served with a warning."""

    what: str
    remedy: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class Way(NamedTuple):
    """A change of the way from the members to an answer: in words, and whether the members are called in turn."""

    words: str
    in_turn: bool = False


class Section(Schema):
    """Fields that a feature adds to a part of the configuration; every field has a default, which means: not set.

    Attributes:
        at: the part: `members` (each of them), `ensemble`, `access` or `ingress`; empty for an entry in `features`.
    """

    at: ClassVar[str] = ""

    @property
    def is_set(self) -> bool:
        """Whether the user has set anything; an entry of its own is set if it is there."""
        return not self.at or self != type(self)()

    def rules(self, owner: Any, config: Any, agreed: Any) -> Iterator[Fault]:
        """Find what contradicts the rest of the configuration, or can't act.

        Args:
            owner: the part that it stands in: a member, `ensemble`, `access`, `ingress`, or the whole configuration.
            config: the whole configuration, an `EnsembleConfig`.
            agreed: the `EnsembleSignature` of the members; None before their models are read.
        """
        yield from ()

    def live(self, owner: Any) -> Mapping[str, Schema | Mapping[str, Schema]]:
        """Return the initial settings that `user_config` changes, by section, or by section and name."""
        return {}

    def beside(self, member: Any) -> Sequence[Any]:
        """List the models that run beside the members' vote: others of a member, or the member itself."""
        return ()

    def way(self, config: Any) -> Way | None:
        """Describe how this changes the way from the members to an answer; None for not at all.

        One feature does so far. Whoever changes which members are called must say so: the words describe the ensemble
        to its users, and predictions that are kept under other words are stale.
        """
        return None


S = TypeVar("S", bound=Section)


class SectionOwner:
    """Owns sections: the base of features and protocols, as far as the configuration knows them.

    Attributes:
        sections: what it adds to the configuration; at most one of them is its own entry in `features`.
        options: what it adds to the options of a request, if it is an entry point; None for nothing.
    """

    sections: ClassVar[Sequence[type[Section]]] = ()
    options: ClassVar[type[AddedOptions] | None] = None

    @classmethod
    def entry(cls) -> type[Section]:
        """Return the schema of its entry in `features`; without fields if it has none of its own."""
        return next((each for each in cls.sections if not each.at), Section)


def owner(name: str) -> type[SectionOwner]:
    """Find a feature by its name or import string; raises ValueError as `find_class`."""
    found: type[SectionOwner] = find_class(FEATURES, name, SectionOwner)
    return found


def added(at: str) -> dict[str, type[Section]]:
    """Return the sections that installed plugins add to a part of the configuration, by the names of fields."""
    owners = [find_class(group, name, SectionOwner) for group in (FEATURES, PROTOCOLS) for name in names(group)]
    sections = [section for each in owners for section in each.sections if section.at == at]
    return {field: section for section in sections for field in section.model_fields}


class Extensible(Schema):
    """A part of the configuration that features add fields to."""

    at: ClassVar[str] = ""
    _sections: tuple[Section, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _fields_of_features_are_sections(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict) or given.keys() <= cls.model_fields.keys():
            return handler(given)
        known, of_sections = added(cls.at), dict[type[Section], dict[str, Any]]()
        for name in given.keys() & known.keys():
            of_sections.setdefault(known[name], {})[name] = given[name]
        made = handler({name: value for name, value in given.items() if name not in known})
        made._sections = tuple(section.model_validate(fields) for section, fields in of_sections.items())
        return made

    @classmethod
    def known(cls) -> Collection[str]:
        """Return the names of its own fields and of the features'."""
        return {*cls.model_fields, *added(cls.at)}

    @classmethod
    def check_names(cls, given: Collection[Any]) -> None:
        """Raise ValueError if one of these names is none of a field, its own or of a feature."""
        if unknown := [name for name in given if name not in cls.model_fields]:
            super().check_names([name for name in unknown if name not in added(cls.at)])

    @property
    def sections(self) -> Sequence[Section]:
        """The sections of features that the user has set."""
        return [section for section in self._sections if section.is_set]

    def of(self, section: type[S]) -> S:
        """Return a feature's section; with its defaults if the user has set none."""
        return next((each for each in self._sections if isinstance(each, section)), section())

    def field(self, name: str) -> Any:
        """Return the value of a feature's field by name, for a reader that does not know the feature; None if unset."""
        return next((getattr(each, name) for each in self._sections if name in type(each).model_fields), None)

    def values(self) -> dict[str, Any]:
        """Return the values of its own fields and of the features'."""
        added = (each.model_dump() for each in self._sections)
        return {**super().values(), **{name: value for fields in added for name, value in fields.items()}}

    def plain(self) -> Self:
        """Return a copy without features' sections, for a process that has no features."""
        copy = self.model_copy()
        copy._sections = ()
        return copy

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(core)
        properties = handler.resolve_ref_schema(found)["properties"]
        for section in dict.fromkeys(added(cls.at).values()):
            properties |= handler.resolve_ref_schema(handler(section.__pydantic_core_schema__))["properties"]
        return found

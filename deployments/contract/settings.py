"""The base of every schema of the configuration, and the types that several of them use.

`...Settings` can change through Serve's `user_config` while the application runs; a `...Config` adds the fields that
are read once, at the start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema

from deployments.contract.errors import ConfigurationError
from deployments.entry_points import did_you_mean, not_installed
from deployments.repository.repository import MAX_NAME_LENGTH, NAME

Placement = Annotated[
    Literal["separate", "inline"],
    Field(description="a Serve deployment of its own, or the process of its caller"),
]
# The CPUs of a replica: those of these numbers, or `auto` for its share of the machine's.
Cpus = Literal["auto"] | Annotated[tuple[Annotated[int, Field(ge=0, le=8191)], ...], Field(min_length=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=NAME, max_length=MAX_NAME_LENGTH)]
SCALARS = {"int", "float", "bool", "str"}
MIB = 1024 * 1024
# What pydantic calls lists and mappings, and their words in YAML.
IN_YAML = {
    re.compile(r"\bvalid (tuple|list|array)\b"): "list",
    re.compile(r"\ba valid (dictionary|object)\b( or instance of \w+)?|\ban object\b"): "a mapping",
}
NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")
# What follows the scheme of an address: it may hold a password.
ADDRESS = re.compile(r"(?<=://)[^\s'\"]+")


def _with_strict_scalars(schema: Any) -> Any:
    """Return a copy of pydantic's description of a type, or of a part of it, in which scalars are strict."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_strict_scalars, schema))
    if not isinstance(schema, dict):
        return schema
    copy = {name: _with_strict_scalars(part) for name, part in schema.items()}
    return copy | ({"strict": True} if schema.get("type") in SCALARS else {})


class Schema(BaseModel):
    """Base of every configuration class: unknown fields are errors, and instances are immutable.

    A boolean or a text is no number, and a number no text, in whatever list or mapping it stands.
    """

    # Tracebacks, which Serve logs, do not quote what was given.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Make the types of numbers, booleans and texts strict; a list may stand for a tuple, and a text for a path."""
        return cast(CoreSchema, _with_strict_scalars(handler(source)))

    @model_validator(mode="before")
    @classmethod
    def _names_are_fields(cls, given: Any) -> Any:
        if isinstance(given, dict):
            cls.check_names(given)
        return given

    @classmethod
    def check_names(cls, given: Collection[Any]) -> None:
        """Raise ValueError if one of these names is none of a field."""
        if unknown := [str(name) for name in given if name not in cls.model_fields]:
            named = (f"unknown field {name!r}{did_you_mean(name, cls.known())}" for name in unknown)
            raise ValueError(f"{'; '.join(named)}{not_installed()}")

    @classmethod
    def known(cls) -> Collection[str]:
        """Return the names of fields that an unknown field may be meant for."""
        return cls.model_fields

    def values(self) -> dict[str, Any]:
        """Return the values of the fields by name."""
        return self.model_dump()

    @classmethod
    def part_of(cls, config: Schema) -> Self:
        """Return the fields of this class, out of a configuration that has more."""
        return cls.model_validate(config.model_dump(include=set(cls.model_fields)))


def describe(error: ValidationError) -> str:
    """Describe each field at fault: its path, its fault, and its value."""
    return "; ".join(problems(error))


def problems(error: ValidationError, above: str = "", root: Any = None) -> list[str]:
    """Describe each field at fault: its path behind `above`, its fault, and its value.

    With `root`, the validated mapping, paths have no names of types.
    """
    found, details = [], error.errors(include_url=False)
    for detail in details:
        loc = detail["loc"]
        # Entries that are refused leave a tuple too short, which is no fault of its own.
        if detail["type"] == "too_short" and any(each["loc"][: len(loc)] == loc != each["loc"] for each in details):
            continue
        path = above + ".".join(map(str, loc if root is None else _fields(loc, root)))
        given = "" if detail["type"] in {"missing", "value_error"} else f" (got {_short(detail['input'])})"
        message = " ".join(detail["msg"].removeprefix("Value error, ").split())
        for pattern, word in IN_YAML.items():
            message = pattern.sub(word, message)
        form = _quotes(detail["type"], detail["input"])
        found.append(f"{path.rstrip('.') or 'configuration'}: {message}{given}{form}")
    return found


def _fields(loc: Sequence[Any], root: Any) -> Iterator[Any]:
    """Leave out of a location what names no field or entry: the types of a union."""
    for position, part in enumerate(loc):
        if (isinstance(root, Mapping) and part in root) or (isinstance(root, list) and isinstance(part, int)):
            root = root[part]
            yield part
        # A field that is missing.
        elif isinstance(root, Mapping) and position == len(loc) - 1:
            yield part


def _quotes(kind: str, value: Any) -> str:
    """Return the remedy for a value that YAML took for another type because of its quotes, or for want of them."""
    if kind in {"int_type", "float_type"} and isinstance(value, str) and NUMBER.fullmatch(value):
        return f"; write {value} without quotes"
    if kind == "bool_type" and value in ("true", "false"):
        return f"; write {value} without quotes"
    return f"; write '{json.dumps(value)}'" if kind == "string_type" and isinstance(value, int | float) else ""


def _short(value: Any) -> str:
    text = ADDRESS.sub("…", json.dumps(value) if isinstance(value, bool) else repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"


def flat(sections: Mapping[str, Any], groups: Collection[str]) -> dict[str, Any]:
    """Return the sections, or their changes, by name; each part of a group is named `group.part`."""
    found: dict[str, Any] = {}
    for name, section in sections.items():
        is_group = name in groups and isinstance(section, Mapping)
        found |= {f"{name}.{each}": value for each, value in section.items()} if is_group else {name: section}
    return found


def changed(name: str, change: Any, initial: Mapping[str, Schema]) -> Schema:
    """Apply a change to a section's settings; raises ConfigurationError for no such section or a wrong change."""
    if name not in initial:
        raise ConfigurationError(f"{name} takes no user_config; these deployments do: {sorted(initial)}")
    try:
        return type(initial[name]).model_validate({**initial[name].values(), **change})
    except (ValidationError, TypeError) as err:
        detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
        raise ConfigurationError(f"{name}: {detail}") from err

"""The base of every schema of the configuration, and the types that several of them use.

`...Settings` can change through Serve's `user_config` while the application runs; a `...Config` adds the fields that
are read once, at the start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.doors import did_you_mean
from deployments.repository.repository import MAX_NAME_LENGTH, NAME

Placement = Annotated[
    Literal["separate", "inline"],
    Field(description="a Serve deployment of its own, or the process of its caller"),
]
# The CPUs of a replica: those of these numbers, or `auto` for its share of the machine's.
Cpus = Literal["auto"] | Annotated[tuple[Annotated[int, Field(ge=0, le=8191)], ...], Field(min_length=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=NAME, max_length=MAX_NAME_LENGTH)]
MIB = 1024 * 1024
# What follows the scheme of an address: it may hold a password.
ADDRESS = re.compile(r"(?<=://)[^\s'\"]+")


class Schema(BaseModel):
    """Base of every configuration class: unknown fields are errors, and instances are immutable."""

    # Tracebacks, which Serve logs, do not quote what was given.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

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
            raise ValueError("; ".join(f"unknown field {name!r}{cls.hint(name)}" for name in unknown))

    @classmethod
    def hint(cls, name: str) -> str:
        """Return the end of the message that a field is unknown."""
        return did_you_mean(name, cls.known())

    @classmethod
    def known(cls) -> Collection[str]:
        """Return the names of fields that an unknown field may be meant for."""
        return cls.model_fields

    @classmethod
    def part_of(cls, config: Schema) -> Self:
        """Return the fields of this class, out of a configuration that has more."""
        return cls.model_validate(config.model_dump(include=set(cls.model_fields)))


def describe(error: ValidationError) -> str:
    """Describe each field at fault: its path, its fault, and its value."""
    lines, details = [], error.errors(include_url=False)
    for detail in details:
        loc = detail["loc"]
        # Entries that are refused leave a tuple too short, which is no fault of its own.
        if detail["type"] == "too_short" and any(each["loc"][: len(loc)] == loc != each["loc"] for each in details):
            continue
        path = ".".join(str(part) for part in loc) or "configuration"
        given = "" if detail["type"] in {"missing", "value_error"} else f" (got {_short(detail['input'])})"
        # Some of our lists are tuples, which YAML does not have.
        message = detail["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        lines.append(f"{path}: {message}{given}")
    return "; ".join(lines)


def _short(value: Any) -> str:
    text = ADDRESS.sub("…", repr(value))
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
        return type(initial[name]).model_validate({**initial[name].model_dump(), **change})
    except (ValidationError, TypeError) as err:
        detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
        raise ConfigurationError(f"{name}: {detail}") from err

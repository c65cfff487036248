"""The sections of `user_config`, by name, and the settings that a change of one makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from deployments.contract.errors import ConfigurationError
from deployments.contract.settings import Schema, describe


def flat(sections: Mapping[str, Any], groups: Collection[str]) -> dict[str, Any]:
    """The sections, or their changes, by name; each part of a group is named `group.part`."""
    found: dict[str, Any] = {}
    for name, section in sections.items():
        is_group = name in groups and isinstance(section, Mapping)
        found |= {f"{name}.{each}": value for each, value in section.items()} if is_group else {name: section}
    return found


def changed(name: str, change: Any, initial: Mapping[str, Schema]) -> Schema:
    """The settings of a section with a change; raises ConfigurationError if there are none, or the change is wrong."""
    if name not in initial:
        raise ConfigurationError(f"{name} takes no user_config; those that do: {sorted(initial)}")
    try:
        return type(initial[name]).model_validate({**initial[name].model_dump(), **change})
    except (ValidationError, TypeError) as err:
        detail = describe(err) if isinstance(err, ValidationError) else "a mapping of field to value is needed"
        raise ConfigurationError(f"{name}: {detail}") from err

"""The base of every schema of the configuration, and the types that several of them use.

`...Settings` hold what changes through Serve's `user_config` while the application runs; a `...Config` adds what is
decided once, at start.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.repository import LONGEST_NAME, NAME

Placement = Literal["separate", "inline"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
MIB = 1024 * 1024


class Schema(BaseModel):
    """Base of every configuration class: unknown fields are errors, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def part_of(cls, config: Schema) -> Self:
        """The fields of this class out of a larger configuration: what `user_config` can change of it."""
        return cls.model_validate(config.model_dump(include=set(cls.model_fields)))


def describe(error: ValidationError, hidden: frozenset[str] = frozenset()) -> str:
    """A line for each field at fault: its path without the `hidden` parts, what is wrong, what it got."""
    lines = []
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"] if part not in hidden) or "configuration"
        given = "" if detail["type"] in {"missing", "value_error"} else f" (got {_short(detail['input'])})"
        lines.append(f"{path}: {detail['msg'].removeprefix('Value error, ')}{given}")
    return "; ".join(lines)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"

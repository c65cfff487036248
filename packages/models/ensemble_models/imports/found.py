"""The result of an import: members, settings, and the outcome for each field of the other server's configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ensemble_models.options import Table
from scripts.errors import ScriptError

TAKEN, CHANGED, LEFT_OUT = "taken", "changed", "left out"
NO_EQUAL = "this server has no such setting"
Kind = TypeVar("Kind")


class Row(NamedTuple):
    """The outcome for a field.

    Attributes:
        part: the model, or the part of the configuration, that the field is of.
        outcome: `TAKEN`, `CHANGED` or `LEFT_OUT`.
        note: the new field, or the reason and the way out.
    """

    part: str
    field: str
    outcome: str
    note: str


@dataclass
class ImportedMember:
    """A member.

    Attributes:
        name: its old name.
        source: the file or folder of its model; None for a member that stays on its server.
        flags: options of `ensemble prepare` that the configuration decides, with their values.
        settings: its fields in the configuration besides `name`.
        canary: the source of another version, which answers the share in `settings`.
    """

    name: str
    source: Path | None = None
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    canary: Path | None = None


@dataclass
class Found:
    """The members and settings that a configuration became.

    Attributes:
        server: the name of the other server.
        sections: settings of the arguments besides `members`, by section.
    """

    server: str
    members: list[ImportedMember] = field(default_factory=list)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def note(self, part: str, name: str, outcome: str, note: str) -> None:
        """Add the outcome for a field."""
        row = Row(part, name, outcome, note)
        if row not in self.rows:
            self.rows.append(row)

    def table(self) -> Table:
        """Show the outcome for each field."""
        lines = [tuple(row) for row in self.rows]
        return Table(("part", "field", "outcome", "note"), lines, words=range(4), title=f"read from {self.server}")


class Part:
    """A mapping of a configuration, whose fields are asked for by name; the others are left out, and listed so."""

    def __init__(self, found: Found, name: str, fields: Any) -> None:
        """Set where rows go, the part's name in them, and the mapping.

        Raises:
            ScriptError: it is no mapping.
        """
        if not isinstance(fields, Mapping):
            raise ScriptError(f"{name}: {reprlib.repr(fields)} is no mapping of fields")
        self.found, self.name, self._fields = found, name, fields
        self._known: set[str] = set()

    def get(self, name: str, kind: type[Kind]) -> Kind | None:
        """Return a field; None if it is absent.

        Raises:
            ScriptError: it is of another type.
        """
        self._known.add(name)
        value = self._fields.get(name)
        if kind is float and type(value) is int:
            value = float(value)
        if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
            return value
        raise ScriptError(f"{self.name}: {name} is {reprlib.repr(value)}, and has to be of the type {kind.__name__}")

    def part(self, name: str) -> Part:
        """Return a field that is a mapping; an empty one if it is absent."""
        fields: dict[str, Any] = self.get(name, dict) or {}
        return Part(self.found, f"{self.name} {name}", fields)

    def parts(self, name: str) -> list[Part]:
        """Return a field that is a list of mappings; an empty one if it is absent."""
        return [Part(self.found, self.name, each) for each in self.get(name, list) or []]

    def tell(self, outcome: str, name: str, note: str) -> None:
        """Tell what became of a field, if it is there: `TAKEN`, `CHANGED` or `LEFT_OUT`."""
        self._known.add(name)
        if name in self._fields:
            self.found.note(self.name, name, outcome, note)

    def close(self, *without_effect: str) -> None:
        """List the fields that nothing has asked for; some need no mention."""
        for name in self._fields:
            if name not in self._known and name not in without_effect:
                self.found.note(self.name, str(name), LEFT_OUT, NO_EQUAL)

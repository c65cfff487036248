"""Rows of figures: the parts of a measurement that make them, their medians, and the table that they fill."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ensemble_models.options import Table
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT

Row = dict[str, Any]
Rows = list[Row]
# The last characters of a failed server's log, which stand in its row.
LAST = 300
# A row of fewer requests is shown, and carries no sentence and no comparison.
FEWEST = 300
# What reaches this share of the highest rate counts as level with it.
REACHED = 0.95
# Counts of a row, which are added up over the rounds.
COUNTS = ("requests", "answered", "failed")


@dataclass(frozen=True)
class Part:
    """A unit of measuring, storing and resuming: mostly a server.

    Attributes:
        name: of the part, unique within the experiment.
        measure: gives its rows.
        key: is in each of its rows; where it is empty, an error ends the experiment instead of becoming a row.
    """

    name: str
    measure: Callable[[], Iterable[Mapping[str, Any]]]
    key: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> Rows:
        """Measure its rows; the last one has the error that ended the part, if any.

        Raises ScriptError if it could not be measured, and has no key.
        """
        rows: Rows = []
        try:
            for row in self.measure():
                rows.append({**self.key, **row})
        except ScriptError as err:
            if not self.key:
                raise
            told = " ".join(str(err).replace(str(CHECKOUT), ".").split())
            rows.append({**self.key, "error": told[-LAST:]})
        return rows


def table(columns: str, rows: Rows, notes: Sequence[str] = ()) -> Table:
    """Fill the columns of `Experiment.columns` in; where a figure is missing, the cell is empty."""
    parted = [column.strip().partition(" {") for column in columns.split("|")]
    heads, templates = [head for head, *_ in parted], ["{" + template for *_, template in parted]
    words = [place for place, template in enumerate(templates) if ":" not in template]
    lines = [[filled(template, row) for template in templates] for row in rows]
    errors = [
        f"{', '.join(line[place] for place in words if line[place])}: not measured: {row['error']}"
        for row, line in zip(rows, lines, strict=True)
        if "error" in row
    ]
    return Table(heads, lines, words=words, notes=[*errors, *notes])


def filled(template: str, row: Row) -> str:
    """Fill a row's figures into a template; the result is empty where a figure is missing."""
    try:
        return template.format_map({name: value for name, value in row.items() if value is not None})
    except (KeyError, TypeError):
        return ""


def medians(rows: Rows, figures: Collection[str]) -> Rows:
    """Take the medians of rows that differ in nothing but these figures; one that failed in a round has its error.

    Counts are added up.
    """
    alike: dict[str, Rows] = {}
    for row in rows:
        key = {name: value for name, value in row.items() if name not in {*figures, *COUNTS, "error"}}
        alike.setdefault(json.dumps(key), []).append(row)
    return [_joined(same, figures) for same in alike.values()]


def _joined(same: Rows, figures: Collection[str]) -> Row:
    for row in same:
        if "error" in row:
            return row
    taken = [name for name in same[0] if name in figures or name in COUNTS]
    return same[0] | {name: _together(name, [row[name] for row in same]) for name in taken}


def _together(name: str, values: Sequence[Any]) -> Any:
    """Add counts up, and take the median of other figures; of texts, take the first."""
    there = [value for value in values if value not in {None, ""}]
    if not there or isinstance(there[0], str):
        return there[0] if there else values[0]
    return sum(there) if name in COUNTS else statistics.median(there)


def side_by_side(rows: Rows, across: str, *by: str) -> Rows:
    """Join rows that are alike in `by`: each stands in one row, under its value of another column.

    Rows of failures come last, as they are.
    """
    joined: dict[tuple[Any, ...], Row] = {}
    for row in measured(rows):
        own = {name: row[name] for name in by}
        joined.setdefault(tuple(own.values()), own)[row[across]] = row
    return [*joined.values(), *(row for row in rows if "error" in row)]


def highest(rows: Rows, figure: str, *by: str) -> dict[Any, Row]:
    """Find the row with the highest figure for each value of a column, or for all values of several columns."""
    found: dict[Any, Row] = {}
    for row in rows:
        key = row[by[0]] if len(by) == 1 else tuple(row[name] for name in by)
        if key not in found or row[figure] >= found[key][figure]:
            found[key] = row
    return found


def measured(rows: Rows) -> Rows:
    """Leave out the rows of failures."""
    return [row for row in rows if "error" not in row]


def enough(rows: Rows) -> Rows:
    """Leave out the rows of failures, and the rows of too few requests to be compared."""
    return [row for row in measured(rows) if row.get("requests", FEWEST) >= FEWEST]

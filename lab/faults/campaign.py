"""What the campaigns of faults share: faults, which the command line chooses, and the report of the measured rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import click
from tqdm import tqdm

from ensemble_models.options import Function, write_files
from lab.rows import Part, Row, Rows, measured, table
from scripts.serve.environment import set_up


@dataclass(frozen=True)
class Done:
    """A fault of a server: its name on the command line, and a sentence for the table."""

    name: str
    what: str


Some = TypeVar("Some", bound=Done)


def fault_argument(kind: str, faults: Sequence[Done]) -> Callable[[Function], Function]:
    """Add the argument `names` to a command: faults, or none for all of them."""
    names = click.Choice([each.name for each in faults])
    return click.argument("names", type=names, nargs=-1, metavar=f"[{kind.upper()}]...")


def parts(kind: str, faults: Iterable[Some], names: Collection[str], measure: Callable[[Some], Rows]) -> list[Part]:
    """Make a part of each named fault, or of all."""
    return [
        Part(each.name, partial(measure, each), {kind: each.name, "what": each.what})
        for each in faults
        if each.name in names or not names
    ]


def report(
    parts: Sequence[Part],
    columns: str,
    files: Mapping[str, Path | None],
    *,
    failed: Callable[[Row], bool] = lambda row: False,
    note: Callable[[Row], str] = lambda row: "",
    shown: Callable[[Rows], Rows] = lambda rows: rows,
) -> None:
    """Measure every part, and print and write the table, also of what ends early; exit with 1 after a failure.

    Args:
        parts: measured one after the other.
        columns: see `Experiment.columns`.
        files: see `write_files`.
        failed: whether a row is a failure.
        note: a sentence on a row below the table; empty for none.
        shown: makes the rows of the table from the measured rows.
    """
    # Deploying to the servers needs it.
    set_up()
    rows: Rows = []
    try:
        for part in tqdm(parts, unit="part"):
            rows += part.rows()
    finally:
        if rows:
            found = table(columns, shown(rows), [*filter(None, map(note, measured(rows)))])
            found.show()
            write_files(SimpleNamespace(**files), found, rows)
    if any("error" in row or failed(row) for row in rows):
        sys.exit(1)

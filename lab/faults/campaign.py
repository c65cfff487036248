"""A campaign of faults: the parts, each with faults of a server, and the table of its clients' answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from ensemble_models.results import write_files
from lab.flags import add_files, check_files
from lab.rows import Part, Row, Rows, table
from scripts.errors import errors_in_one_line
from scripts.flags import described
from scripts.serve.environment import set_up


@dataclass(frozen=True)
class Campaign:
    """A campaign.

    Attributes:
        name: on the command line, behind `ensemble faults`; empty for the one without a name.
        help: of the command.
        add_flags: adds the flags that choose parts and faults.
        parts: makes the parts by those flags.
        columns: see `Experiment.columns`.
        failed: whether a row makes the exit status 1.
        shown: makes the rows of the table from the measured rows.
        note: a sentence on a row below the table; empty for none.
    """

    name: str
    help: str | None
    add_flags: Callable[[argparse.ArgumentParser], object]
    parts: Callable[[argparse.Namespace], Sequence[Part]]
    columns: str
    failed: Callable[[Row], bool] = lambda row: False
    shown: Callable[[Rows], Rows] = lambda rows: rows
    note: Callable[[Row], str] = lambda row: ""

    def main(self, arguments: Sequence[str]) -> None:
        """Parse the command line, do every part, and report, also of what ends early."""
        parser = described(self.help, f"ensemble faults {self.name}".strip())
        self.add_flags(parser)
        add_files(parser, "json", "markdown")
        args = parser.parse_args(arguments)
        check_files(parser, args)
        rows: Rows = []
        with errors_in_one_line():
            # Deploying to the servers needs it.
            set_up()
            try:
                for part in tqdm(self.parts(args), unit="part"):
                    rows += part.rows()
            finally:
                if rows:
                    self._report(rows, args)
        if any("error" in row or self.failed(row) for row in rows):
            sys.exit(1)

    def _report(self, rows: Rows, args: argparse.Namespace) -> None:
        notes = [note for row in rows if "error" not in row and (note := self.note(row))]
        found = table(self.columns, self.shown(rows), notes)
        found.show()
        write_files(args, found, rows)


@dataclass(frozen=True)
class Done:
    """A fault of a server.

    Attributes:
        name: on the command line.
        what: as a sentence for the table.
    """

    name: str
    what: str


D = TypeVar("D", bound=Done)


def chosen(kind: str, of: Sequence[D], names: Sequence[str], measure: Callable[[D], Iterable[Row]]) -> list[Part]:
    """Make a part of each of a kind that is named, or of all where none is."""
    wanted = [each for each in of if each.name in names or not names]
    return [Part(each.name, partial(measure, each), {kind: each.name, "what": each.what}) for each in wanted]


def add_names(parser: argparse.ArgumentParser, kind: str, names: Sequence[str]) -> None:
    """Add an argument that takes some of these names; none of them for all."""
    parser.add_argument("names", nargs="*", metavar=kind.upper(), type=_one_of(kind, names), help=", ".join(names))


def _one_of(kind: str, names: Sequence[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no {kind} {name!r}; there are {', '.join(names)}")
        return name

    return check

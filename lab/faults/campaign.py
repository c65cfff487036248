"""A campaign of faults: the parts, each with faults of a server, and the table of its clients' answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import click
from tqdm import tqdm

from ensemble_models.options import Command, file_options, write_files
from lab.rows import Part, Row, Rows, measured, table
from scripts.serve.environment import set_up


@dataclass(frozen=True)
class Done:
    """A fault of a server.

    Attributes:
        name: on the command line.
        what: as a sentence for the table.
    """

    name: str
    what: str


@dataclass(frozen=True)
class Campaign:
    """A campaign.

    Attributes:
        name: on the command line, behind `ensemble faults`; empty for the one without a name.
        help: of the command.
        columns: see `Experiment.columns`.
        measure: yields rows, by the values of the flags; and first by a fault, where there are several.
        flags: by name, the arguments of `click.Option`.
        kind: names the faults in rows and errors.
        faults: of which the command line may choose some.
        failed: whether a row makes the exit status 1.
        shown: makes the rows of the table from the measured rows.
        note: a sentence on a row below the table; empty for none.
    """

    name: str
    help: str | None
    columns: str
    measure: Callable[..., Iterable[Row]]
    flags: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    kind: str = ""
    faults: Sequence[Done] = ()
    failed: Callable[[Row], bool] = lambda row: False
    shown: Callable[[Rows], Rows] = lambda rows: rows
    note: Callable[[Row], str] = lambda row: ""

    def main(self, arguments: Sequence[str]) -> None:
        """Parse the command line, do every part, and report, also of what ends early."""
        names = [each.name for each in self.faults]
        chosen = [click.Argument(["names"], type=click.Choice(names), nargs=-1, metavar=f"[{self.kind.upper()}]...")]
        params = [
            *(chosen if names else []),
            *(click.Option([name], **options) for name, options in self.flags.items()),
        ]
        command = Command(f"faults {self.name}".strip(), params=params, callback=self._run, help=self.help)
        file_options("json", "markdown")(command).main(list(arguments))

    def _run(self, names: Sequence[str] = (), **given: Any) -> None:
        files = SimpleNamespace(**{name: given.pop(name) for name in ("json", "markdown")})
        # Deploying to the servers needs it.
        set_up()
        rows: Rows = []
        try:
            for part in tqdm(self.parts(names, given), unit="part"):
                rows += part.rows()
        finally:
            if rows:
                found = table(self.columns, self.shown(rows), [*filter(None, map(self.note, measured(rows)))])
                found.show()
                write_files(files, found, rows)
        if any("error" in row or self.failed(row) for row in rows):
            sys.exit(1)

    def parts(self, names: Sequence[str], given: Mapping[str, Any]) -> list[Part]:
        """Make a part of each chosen fault, or of all; or one part where a campaign has no list of faults."""
        if not self.faults:
            return [Part("all", partial(self.measure, **given), {"campaign": self.name})]
        return [
            Part(each.name, partial(self.measure, each, **given), {self.kind: each.name, "what": each.what})
            for each in self.faults
            if each.name in names or not names
        ]

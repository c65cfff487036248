"""Results that people compare: a table for the terminal, and the files that a command's options name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import rich.table
from rich.console import Console

from ensemble_models.options import Function, OutputFile, option

# Characters, where there is no terminal whose width is known.
WIDTH = 150
FILES = {"json": None, "markdown": None, "plot": "PNG or SVG; needs Matplotlib."}


def console() -> Console:
    """Make a console as wide as the terminal, or of a fixed width where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


@dataclass(frozen=True)
class Table:
    """Lines of text under headings.

    Attributes:
        words: the positions of the columns that hold words; the others hold numbers, and are aligned right.
        title: above it, in a terminal.
        notes: sentences below it.
    """

    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: Collection[int] = (0,)
    title: str | None = None
    notes: Sequence[str] = ()

    def show(self) -> None:
        """Print the table."""
        drawn = rich.table.Table(title=self.title)
        for position, heading in enumerate(self.headings):
            drawn.add_column(heading, justify="left" if position in self.words else "right")
        for line in self.lines:
            drawn.add_row(*line)
        out = console()
        out.print(drawn)
        for note in self.notes:
            out.print(note, highlight=False, markup=False, soft_wrap=True)

    def markdown(self) -> str:
        """Write the table in Markdown."""
        rule = ["---" if position in self.words else "---:" for position in range(len(self.headings))]
        lines = "".join(f"| {' | '.join(line)} |\n" for line in (self.headings, rule, *self.lines))
        return lines + "".join(
            f"{'' if number else chr(10)}- {note.strip()}\n" for number, note in enumerate(self.notes)
        )


def file_options(*kinds: str) -> Callable[[Function], Function]:
    """Add some of the options `--json`, `--markdown` and `--plot` to a command of click; see `write_files`."""

    def add(command: Function) -> Function:
        for kind in reversed(kinds):
            command = option(f"--{kind}", type=OutputFile(), metavar="FILE", help=FILES[kind])(command)
        return command

    return add


def write_files(
    args: object, table: Table | None, records: Any = None, plot: Callable[[Path], None] | None = None
) -> None:
    """Write the files that the options name: `--markdown` the table, `--json` the records, and `--plot`.

    Records may be dataclasses; a value that is no number is null.
    """
    file: Path | None
    if (file := getattr(args, "json", None)) is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(records, enc_hook=float), indent=1) + b"\n")
    if table is not None and (file := getattr(args, "markdown", None)) is not None:
        file.write_text(table.markdown(), encoding="utf-8")
    if plot is not None and (file := getattr(args, "plot", None)) is not None:
        plot(file)

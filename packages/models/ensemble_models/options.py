"""What commands share: types of options, errors of one line, tables, and the files that options name."""

import inspect
import logging
import math
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import rich.table
from rich.console import Console
from rich.text import Text

from scripts.errors import errors_in_one_line

Function = TypeVar("Function", bound=Callable[..., Any] | click.Command)
# The environment variable of the repository that commands read and write unless another one is named.
VARIABLE = "ENSEMBLE_MODELS"
WRONG_USAGE = 2


class Command(click.Command):
    """A command of `ensemble`: `--rate 1 2` is `--rate 1 --rate 2`, and a mistake is one line on stderr."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """See `click.Command.get_help_option_names`."""
        return ["-h", "--help"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        return super().parse_args(ctx, list(self._spread(args)))

    def _spread(self, args: Sequence[str]) -> Iterator[str]:
        """Repeat an option that takes several values before each of them."""
        several = {name for each in self.params if getattr(each, "multiple", False) for name in each.opts}
        option, first = "", False
        for arg in args:
            if arg.startswith("--"):
                option, first = (arg if arg in several else ""), True
            elif option and not first:
                yield option
            else:
                first = False
            yield arg

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring as it is."""
        formatter.write(f"\n{textwrap.indent(inspect.cleandoc(self.help or ''), '  ')}\n")

    def main(self, *args: Any, **more: Any) -> Any:
        """Run; end with status 2 and one line if the command line is wrong, and with 1 if the work failed."""
        program = f"ensemble {self.name}"
        # What a replica logs as information, such as the streams that it measured, is no result.
        logging.disable(logging.INFO)
        try:
            given = {"prog_name": program, "standalone_mode": False, "max_content_width": 120}
            with errors_in_one_line():
                return super().main(*args, **{**more, **given})
        except click.ClickException as err:
            print(f"{program}: {' '.join(err.format_message().split())}", file=sys.stderr)
            sys.exit(WRONG_USAGE)
        except click.Abort:
            sys.exit(130)
        finally:
            logging.disable(logging.NOTSET)


class Number(click.FloatRange):
    """A finite number, above or from 0."""

    def __init__(self, *, or_zero: bool = False, below: float | None = None) -> None:
        super().__init__(0, below, min_open=not or_zero, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class OutputFile(click.Path):
    """A file to write after the work; its folder must be there before."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        file = Path(str(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"there is no folder {file.parent} to write {file.name} to", param, ctx)
        return file


def option(*names: str, help: str | None = None, **more: Any) -> Callable[[Function], Function]:
    """Make an option whose help names its default, if it has one that is no function."""
    default = more.get("default")
    return click.option(*names, help=help, show_default=default is not None and not callable(default), **more)


POSITIVE, COUNT, SHARE, FILE = click.IntRange(1), click.IntRange(0), click.FloatRange(0, 1), click.Path(path_type=Path)


def default_repository() -> Path:
    """Return the folder that the environment variable ENSEMBLE_MODELS names, else `models` in the working directory."""
    return Path(os.environ.get(VARIABLE) or "models")


def repository_option(command: Function) -> Function:
    """Add the option `--repository` to a command."""
    described = f"Folder of the models, <name>/<version>/; default: ${VARIABLE}, else ./models."
    return click.option("--repository", type=FILE, default=default_repository, metavar="FOLDER", help=described)(
        command
    )


def data_option(command: Function) -> Function:
    """Add the option `--data` to a command, labelled images."""
    described = "Zip file or folder of <class>/*.jpg; default: $ENSEMBLE_DATA/cifar10/test.zip."
    return option("--data", type=FILE, default=default_data, callback=_is_named, help=described)(command)


def _is_named(_context: click.Context, _option: click.Parameter, data: Path | None) -> Path:
    if data is None:
        raise click.UsageError("--data is required where ENSEMBLE_DATA is not set")
    return data


def default_data() -> Path | None:
    """Return the path of CIFAR-10's test set in the folder of the environment variable ENSEMBLE_DATA, if it is set."""
    root = os.environ.get("ENSEMBLE_DATA")
    return Path(root) / "cifar10" / "test.zip" if root else None


# Characters, where there is no terminal whose width is known.
WIDTH = 150


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
            # As they are: a name may look like rich's markup.
            drawn.add_row(*map(Text, line))
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
    """Add the options `--json` and `--markdown`, or one of them, to a command of click; see `write_files`."""

    def add(command: Function) -> Function:
        for kind in reversed(kinds):
            command = option(f"--{kind}", type=OutputFile(), metavar="FILE")(command)
        return command

    return add


def write_files(args: object, table: Table | None, records: Any = None, more: Sequence[Table] = ()) -> None:
    """Write the files that the options name: `--markdown` the table and `more` of them, and `--json` the records.

    Records may be dataclasses; a value that is no number is null.
    """
    file: Path | None
    if (file := getattr(args, "json", None)) is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(records, enc_hook=float), indent=1) + b"\n")
    if table is not None and (file := getattr(args, "markdown", None)) is not None:
        file.write_text("\n".join(each.markdown() for each in (table, *more)), encoding="utf-8")

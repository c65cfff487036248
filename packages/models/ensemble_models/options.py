"""What commands share: types of options, lists of values, and errors of one line."""

from __future__ import annotations

import inspect
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from deployments.contract.errors import ConfigurationError, EnsembleError
from deployments.repository.errors import ModelError
from scripts.errors import ScriptError

Function = TypeVar("Function", bound=Callable[..., Any] | click.Command)
# The environment variable of the repository that commands read and write unless another one is named.
VARIABLE = "ENSEMBLE_MODELS"
MISTAKES = (ScriptError, ModelError, ConfigurationError, EnsembleError, OSError)
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
        try:
            given = {"prog_name": program, "standalone_mode": False, "max_content_width": 120}
            return super().main(*args, **{**more, **given})
        except click.ClickException as err:
            print(f"{program}: {' '.join(err.format_message().split())}", file=sys.stderr)
            sys.exit(WRONG_USAGE)
        except click.Abort:
            sys.exit(130)
        except MISTAKES as err:
            sys.exit("error: " + " ".join(str(err).split()))


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

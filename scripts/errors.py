"""The mistakes that a command's user can make, and how they are reported: in one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from deployments.contract.errors import ConfigurationError, EnsembleError
from deployments.repository.errors import ModelError

T = TypeVar("T")


class ScriptError(ValueError):
    """A command can't do its work; the message gives the reason and a remedy."""


class DatasetError(ScriptError):
    """The path holds no labelled images."""


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the user's mistakes into `error: ...` on stderr and exit status 1; bugs keep their traceback."""
    try:
        yield
    except (ScriptError, ModelError, ConfigurationError, EnsembleError, OSError) as err:
        raise SystemExit("error: " + " ".join(str(err).split())) from err


def check_writable(parser: argparse.ArgumentParser, *files: Path | None) -> None:
    """End with a usage error, before the work, if a file that is written after it is a folder, or has none."""
    for file in files:
        if file is not None and file.is_dir():
            parser.error(f"{file} is a folder; name a file")
        if file is not None and not file.parent.is_dir():
            parser.error(f"there is no folder {file.parent} to write {file.name} to")


def flag_type(read: Callable[[str], T], is_right: Callable[[T], bool], wanted: str) -> Callable[[str], T]:
    """Make the type of a flag, whose error for a wrong value names the wanted values."""

    def parse(text: str) -> T:
        try:
            value = read(text)
        except ValueError:
            value = None
        if value is None or not is_right(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}")
        return value

    return parse


positive = flag_type(int, lambda value: value >= 1, "a whole number, 1 or more")
zero_or_more = flag_type(float, lambda value: 0 <= value < math.inf, "a number, 0 or more")

"""The mistakes that a command's user can make, and how they are reported: in one line."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.contract.errors import ConfigurationError, EnsembleError
from models.errors import ModelError


class ScriptError(ValueError):
    """A command can't do what it was called for; the message says why and what to do instead."""


class DatasetError(ScriptError):
    """The path holds no labelled images."""


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the user's mistakes into `error: ...` on stderr and exit status 1; bugs keep their traceback."""
    try:
        yield
    except (ScriptError, ModelError, ConfigurationError, EnsembleError, OSError, zipfile.BadZipFile) as err:
        raise SystemExit("error: " + " ".join(str(err).split())) from err


def check_writable(parser: argparse.ArgumentParser, *files: Path | None) -> None:
    """End with a usage error, before the work, if a file that is written after it has no folder."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            parser.error(f"there is no folder {file.parent} to write {file.name} to")


def positive(text: str) -> int:
    """The type of a flag that is 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def at_least_zero(text: str) -> int:
    """The type of a flag that is 0 or more."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def fraction(text: str) -> float:
    """The type of a flag from 0 to 1."""
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value

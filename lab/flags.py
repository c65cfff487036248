"""Flags of the laboratory's commands: dataclasses whose fields are flags, types of numbers, and files of results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

from scripts.errors import check_writable, flag_type

T = TypeVar("T")

FILES = ("json", "markdown")


def number(above: float, below: float = math.inf) -> Callable[[str], float]:
    """Make the type of a flag that is a number between two others."""
    upper = f" and below {below:g}" if below < math.inf else ""
    return flag_type(float, lambda value: above < value < below, f"a number above {above:g}{upper}")


at_least_zero = flag_type(int, lambda value: value >= 0, "a whole number, 0 or more")
fraction = flag_type(float, lambda value: 0 <= value <= 1, "from 0 to 1")


def flag(default: Any, help: str, name: str = "", **more: Any) -> Any:
    """Define a field with a flag, `--two-words` as the field is named or `name`; `more` is for `add_argument`."""
    return field(default=default, metadata={"name": name, "help": help, **more})


def add_flags(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Add a flag for each field of a dataclass that has one."""
    for each in fields(cls):
        if options := dict(each.metadata):
            name = options.pop("name") or f"--{each.name.replace('_', '-')}"
            parser.add_argument(name, dest=each.name, default=each.default, **options)


def from_flags(cls: type[T], args: argparse.Namespace) -> T:
    """Make a dataclass of a command line; a field without a flag takes an argument of its name, or its default."""
    given = {each.name: getattr(args, each.name) for each in fields(cls) if hasattr(args, each.name)}  # type: ignore[arg-type]
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def add_files(parser: argparse.ArgumentParser, *kinds: str) -> None:
    """Add the flags `--json` and `--markdown`, or the named one of them."""
    for kind in kinds or FILES:
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE")


def check_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a usage error if one of the files has no folder."""
    check_writable(parser, *(getattr(args, kind, None) for kind in FILES))

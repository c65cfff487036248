"""Dataclasses whose fields are a command's flags: each field says its default, its type and its help once."""

from __future__ import annotations

import argparse
from dataclasses import field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def described(doc: str | None, prog: str | None = None) -> argparse.ArgumentParser:
    """Make a parser whose `--help` shows a docstring as it is; `prog` is a command that `ensemble` does not set."""
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


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

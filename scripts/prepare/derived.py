"""A version of a model that is made of another version: what its metadata keep, and the command that makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.repository import Model
from deployments.repository.writing import describe, input_metadata
from scripts.errors import errors_in_one_line, positive
from scripts.flags import add_flags, described, from_flags
from scripts.repository import add_repository

T = TypeVar("T")


def kept(source: Model, precision: str, wanted: Preprocessing) -> dict[str, Any]:
    """Collect the precision, and the source's classes and input, for `metadata.json`."""
    return {
        "precision": precision,
        **({"classes": list(source.labels)} if source.labels else {}),
        "input": {**input_metadata(wanted.size, wanted.crop_ratio), **source.input},
    }


def command(
    doc: str | None, settings: type[T], make: Callable[[Path, str, int | None, T], Path], *, of: str, data: str
) -> None:
    """Parse the command line, and write a version of a model.

    Args:
        doc: the command's help.
        settings: a class of flags.
        make: writes the version, by the repository, the model's name, its version and the settings; returns the folder.
        of: the help for --version, which names the version it is made of.
        data: the help for --data.
    """
    parser = described(doc)
    parser.add_argument("name", help="model of the repository")
    parser.add_argument("--version", type=positive, help=of)
    parser.add_argument("--data", type=Path, required=True, help=data)
    add_repository(parser)
    add_flags(parser, settings)
    args = parser.parse_args()
    with errors_in_one_line():
        print(f"wrote {describe(make(args.repository, args.name, args.version, from_flags(settings, args)))}")

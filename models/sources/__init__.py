"""Where models come from: a folder, a website or a bucket, of which what is asked for is fetched into a cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

from models.repository import Folder, Model, Stamp
from models.sources.location import Location

# What the configuration names.
Where = Path | Location


class Repository(Protocol):
    """Models by name and version.

    Attributes:
        look_every_s: how often it may be asked for new versions, at most.
        places_whole: whether a version that is there is complete; in a folder it may be being written.
    """

    look_every_s: float
    places_whole: bool

    def versions(self, name: str) -> list[int]:
        """The versions of a model, ascending; empty if there is no such model."""

    def stamp(self, name: str, version: int) -> Stamp:
        """What changes when the files of a version do, without asking anew."""

    def find(self, name: str, version: int | None = None) -> Model:
        """A version on this machine's disk, the highest by default; raises ModelError if it can't be had."""


def opened(where: Where) -> Repository:
    """The repository at a place; what was learnt of a source is shared within a process."""
    return Folder(where) if isinstance(where, Path) else _mirror(where)


@cache
def _mirror(location: Location) -> Repository:
    # Imported where it is needed: serving from a folder needs no client of anything.
    from models.sources.mirror import Mirror

    return Mirror(location)

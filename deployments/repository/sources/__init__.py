"""Model repositories: a folder, or a website or bucket whose models are fetched into a cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

from deployments.repository.repository import Folder, Model, Stamp
from deployments.repository.sources.mirror import Mirror
from deployments.repository.sources.source import Location

# The address of a repository in the configuration.
RepositoryAddress = Path | Location


class Repository(Protocol):
    """Models by name and version.

    Attributes:
        poll_interval_s: how often to look for new versions, seconds.
        is_atomic: whether every version that it lists is complete; in a folder, one may be being written.
    """

    poll_interval_s: float
    is_atomic: bool

    def versions(self, name: str) -> list[int]:
        """List the versions of a model, ascending; empty if there is no such model."""

    def stamp(self, name: str, version: int) -> Stamp:
        """Return the stamp of a version's files, as they were when they were listed last."""

    def find(self, name: str, version: int | None = None) -> Model:
        """Return a version on this machine's disk, by default the highest; raises ModelError if there is none."""


def open_repository(where: RepositoryAddress) -> Repository:
    """Open the repository at an address; within a process, those of the same website or bucket are one."""
    return Folder(where) if isinstance(where, Path) else _mirror(where)


@cache
def _mirror(location: Location) -> Repository:
    return Mirror(location)

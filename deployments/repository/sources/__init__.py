"""Model repositories: a folder, or a website or bucket whose models are fetched into a cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from deployments.repository.repository import Folder
from deployments.repository.sources.mirror import Mirror
from deployments.repository.sources.source import Location

# The address of a repository in the configuration.
RepositoryAddress = Path | Location
# Models by name and version: `versions` lists them, `find` returns one on this machine's disk.
Repository = Folder | Mirror


def open_repository(where: RepositoryAddress) -> Repository:
    """Open the repository at an address; within a process, those of the same website or bucket are one."""
    return Folder(where) if isinstance(where, Path) else _mirror(where)


@cache
def _mirror(location: Location) -> Mirror:
    return Mirror(location)

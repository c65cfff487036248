"""The sources that models are fetched from: a scheme of addresses is an entry point that names a `Source`."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult

from deployments import doors
from deployments.repository.errors import SourceError

# The group of entry points; a name is the scheme of an address.
REPOSITORIES = "ensemble_serving.repositories"


@dataclass(frozen=True)
class Location:
    """The address of a source.

    Attributes:
        url: without a slash at its end, and without a fragment.
        manifest: the SHA-256 that the source's manifest must have; None for any.
    """

    url: str
    manifest: str | None = None

    @property
    def scheme(self) -> str:
        """Return the scheme, in lower case."""
        return self.url.partition(":")[0]

    def __str__(self) -> str:
        return self.url


class File(NamedTuple):
    """A file at a source.

    Attributes:
        size: in bytes.
        tag: changes with the content.
        sha256: of the content, hexadecimal, if the source has it.
    """

    size: int
    tag: str
    sha256: str | None = None


# The files of each version of a model, by their path below the version's folder.
Listing = dict[int, dict[str, File]]


class Source(ABC):
    """Models at the addresses of a scheme.

    Attributes:
        has_manifest: whether an address may end in `#sha256=` and the digest of the source's manifest.
    """

    has_manifest = False

    @classmethod
    def check(cls, address: SplitResult) -> None:
        """Raise SourceError for an address that can't name a repository."""
        if not address.hostname:
            raise SourceError(f"{address.geturl()!r} names no host or bucket")

    def __init__(self, location: Location) -> None:
        """Set the address; raises SourceError if a package that the source needs is missing."""
        self.location = location

    @abstractmethod
    def list(self, name: str) -> Listing:
        """List the files of a model.

        Raises:
            Unreachable: the source does not answer.
            SourceError: the source refuses, or its answer is invalid.
        """

    @abstractmethod
    def fetch(self, path: str, target: Path, most: int) -> None:
        """Copy a file, by its path below the repository, to a path on this machine; raises as `list` does.

        Raises:
            SourceError: the file has more than `most` bytes, or as `list` does.
        """

    def read(self, path: str, most: int) -> bytes:
        """Return the content of a small file; raises as `fetch` does."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "content"
            self.fetch(path, target, most)
            return target.read_bytes()


def schemes() -> list[str]:
    """List the schemes of addresses that an installed package serves."""
    return doors.names(REPOSITORIES)


def source_class(scheme: str) -> type[Source]:
    """Return the class that reads the addresses of a scheme.

    Raises:
        SourceError: no installed package serves the scheme, or the package can't be imported.
    """
    if scheme not in schemes():
        known = ", ".join(f"{each}://" for each in schemes() if each != "http")
        raise SourceError(f"{scheme}:// is not supported; models come from a folder or {known}")
    try:
        found: type[Source] = doors.find_class(REPOSITORIES, scheme, Source)
    except ValueError as err:
        raise SourceError(f"{scheme}://: {err}") from err
    return found

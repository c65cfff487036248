"""The protocol of the sources that models are fetched from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


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


class Source(Protocol):
    """A website or a bucket."""

    def list(self, name: str) -> Listing:
        """List the files of a model.

        Raises:
            Unreachable: the source does not answer.
            SourceError: the source refuses, or its answer is invalid.
        """

    def read(self, path: str) -> Iterator[bytes]:
        """Read a file in pieces, by its path below the repository; raises as `list` does."""

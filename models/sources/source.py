"""What a place that models are fetched from is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class File(NamedTuple):
    """A file at a source.

    Attributes:
        size: its bytes.
        tag: changes when its content does.
        sha256: of its content, hexadecimal, if the source tells it.
    """

    size: int
    tag: str
    sha256: str | None = None


# The files of each version of a model, by their path below the version's folder.
Listing = dict[int, dict[str, File]]


class Source(Protocol):
    """A website or a bucket."""

    def list(self, name: str) -> Listing:
        """What it has of a model.

        Raises:
            Unreachable: it does not answer.
            SourceError: it refuses, or answers nonsense.
        """

    def read(self, path: str) -> Iterator[bytes]:
        """A file's content in pieces, by its path below the repository; raises as `list` does."""

"""What was measured, kept in a file as it comes, so that a search that was ended goes on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """What was measured of a candidate at a rate.

    Attributes:
        rate: requests per second that were answered.
        p99: milliseconds; None where requests failed.
    """

    rate: float
    p99: float | None

    @property
    def p99_ms(self) -> float:
        """The p99, infinite where requests failed."""
        return math.inf if self.p99 is None else self.p99

    def __str__(self) -> str:
        """In words."""
        p99 = "requests failed" if self.p99 is None else f"a p99 of {self.p99:.1f} ms"
        return f"{self.rate:.0f} requests/s answered, {p99}"


class Content(msgspec.Struct):
    """The file's content: what its measurements depend on, and each by the candidate and the rate in words."""

    digest: str
    seen: dict[str, Seen] = {}


class Kept:
    """Measurements in a file.

    Attributes:
        seen: by the candidate and the rate in words.
    """

    def __init__(self, file: Path, content: Content) -> None:
        """Set the file, and what it has."""
        self._file, self._content = file, content
        self.seen = content.seen

    @classmethod
    def open(cls, file: Path, parts: Iterable[bytes], again: bool = False) -> Self:
        """The measurements in a file that depend on the same, or none of them.

        Args:
            file: it may be missing.
            parts: what they depend on.
            again: whether to measure anew.
        """
        content = Content(hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest())
        if again or not file.exists():
            return cls(file, content)
        try:
            before = msgspec.json.decode(file.read_bytes(), type=Content)
        except msgspec.MsgspecError:
            before = Content("")
        if before.digest == content.digest:
            print(f"Going on with the {len(before.seen)} measurements of {file}; --again measures anew.", flush=True)
            return cls(file, before)
        print(f"{file} is of another configuration, profile or goal; it is written anew.", flush=True)
        return cls(file, content)

    def add(self, key: str, seen: Seen) -> None:
        """Keep a measurement."""
        self.seen[key] = seen
        self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self._content)) + b"\n")

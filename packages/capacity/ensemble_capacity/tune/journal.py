"""A journal of measurements in a file, so that an interrupted search goes on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """A measurement of a candidate: requests per second that were answered, and p99, None where requests failed."""

    rate: float
    p99: float | None

    @property
    def p99_ms(self) -> float:
        """The p99, infinite where requests failed."""
        return math.inf if self.p99 is None else self.p99


class Journal(msgspec.Struct):
    """Measurements in a file.

    Attributes:
        digest: of what they depend on.
        seen: by the candidate and the rate in words.
    """

    digest: str = ""
    seen: dict[str, Seen] = {}

    def write(self, file: Path) -> None:
        """Write the file."""
        file.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def read(file: Path, parts: Iterable[bytes], again: bool) -> Journal:
    """Read the measurements of a file that depend on these parts; none if they depend on others, or `again` is set."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    if again or not file.exists():
        return Journal(digest)
    try:
        before = msgspec.json.decode(file.read_bytes(), type=Journal)
    except msgspec.MsgspecError:
        before = Journal()
    if before.digest == digest:
        print(f"Going on with the {len(before.seen)} measurements of {file}; --again measures anew.", flush=True)
        return before
    print(f"{file} is of another configuration, machine or goal, or of other images; it is written anew.", flush=True)
    return Journal(digest)

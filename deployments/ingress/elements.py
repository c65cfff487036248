"""A raw tensor of BYTES, as the Open Inference Protocol sends it: each element follows its length, 4 bytes."""

from __future__ import annotations

from collections.abc import Iterator

LENGTH_BYTES = 4


def elements(raw: bytes | memoryview, at: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where each element begins and ends, from `at` on; the last element may end behind the received bytes."""
    while at + LENGTH_BYTES <= len(raw):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(raw[at:begin], "little")
        yield begin, at

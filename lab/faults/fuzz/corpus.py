"""The hand-made cases of corpus.yaml, and damage to well-formed bytes."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import yaml

from deployments.ingress.settings import MOST_ELEMENTS

MIB = 2**20
# Sizes and counts that parsers trip over.
AWKWARD = (0, 1, 2, 7, 8, 15, 16, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
# Headers are where parsers decide what to allocate.
HEADER_BYTES = 96
# A count that the server admits, just below the count that it refuses.
NEARLY = MOST_ELEMENTS - 64
REPEATED = re.compile(r"<<(.*?)\*(\d+)>>", re.DOTALL)


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_read(each) for each in value]
    return REPEATED.sub(lambda found: found[1] * int(found[2]), value).encode("latin-1")


# The hand-made cases, by name: lists of bytes, and mappings of names to bytes.
CASES: dict[str, Any] = _read(yaml.safe_load(Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8")))


def stretched(
    size: int,
    unit: bytes,
    first: bytes = b"",
    last: bytes = b"",
    close: bytes = b"",
    most: bytes = b"",
    cap: bytes = b"",
) -> bytes:
    """Return a long case of the corpus of about `size` bytes; the corpus explains the arguments."""
    count = max(1, size // len(unit + close))
    if cap:
        count = min(count, NEARLY // int(cap))
        unit += b" " * ((size // count - len(unit + close)) * (not close))
    if most:
        count = min(count, int(most))
    units = [unit.replace(b"%x", b"%x" % number) for number in range(count)] if b"%x" in unit else [unit * count]
    return first + b"".join(units) + last + close * count


def long_case(rng: Random, group: str, size: int) -> tuple[str, bytes]:
    """Draw a long case of a group of the corpus; return its name, and its bytes of about a size."""
    name, case = rng.choice(list(CASES[group].items()))
    return name, stretched(size, **case)


def zeros(size: int, wbits: int) -> bytes:
    """Return `size` compressed zeros, about a thousandth of the bytes; `wbits` is zlib's. One megabyte is repeated."""
    packer, block = zlib.compressobj(9, wbits=wbits), bytes(MIB)
    start = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    # The checksum at the end is wrong; a reader finds that out after it has unpacked everything.
    return start + repeated * (size // MIB - 1) + packer.flush()


def damaged(data: bytes, rng: Random) -> bytes:
    """Return the beginning of the bytes, or the bytes with one to four parts removed, repeated, moved or changed."""
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data) + 1)]
    for _ in range(rng.choice((1, 1, 2, 4)) if data else 0):
        at = rng.randrange(rng.choice((min(len(data), HEADER_BYTES), len(data))))
        size = rng.choice((1, 2, 4, rng.randrange(1, 65), rng.randrange(1, max(2, len(data) // 8))))
        part, elsewhere = data[at : at + size], rng.randrange(len(data))
        replaced, removed = rng.choice(
            (
                (b"", size),
                (part * rng.choice((2, 3, 30)), size),
                (data[elsewhere : elsewhere + size], size),
                (rng.choice((b"\0", b"\xff")) * len(part), size),
                (rng.randbytes(min(size, 64)), 0),
                (bytes(byte ^ 1 << rng.randrange(8) for byte in part), size),
                (struct.pack(rng.choice(("<I", ">I")), rng.choice(AWKWARD)), 4),
                (struct.pack(rng.choice(("<H", ">H")), rng.choice(AWKWARD) & 0xFFFF), 2),
            )
        )
        data = data[:at] + replaced + data[at + removed :]
    return data

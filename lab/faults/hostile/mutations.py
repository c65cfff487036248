"""Damage to bytes, as a fuzzer does it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random

# Sizes and counts that parsers trip over.
AWKWARD = (0, 1, 2, 7, 8, 15, 16, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
# Headers are where parsers decide what to allocate.
HEADER_BYTES = 96


def _flip(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _fill(data: bytearray, rng: Random) -> None:
    first = rng.randrange(len(data))
    size = rng.randrange(1, 65)
    filler = rng.choice((b"\x00" * size, b"\xff" * size, rng.randbytes(size)))
    data[first : first + size] = filler[: len(data) - first]


def _remove(data: bytearray, rng: Random) -> None:
    first = rng.randrange(len(data))
    del data[first : first + rng.randrange(1, max(2, len(data) // 8))]


def _repeat(data: bytearray, rng: Random) -> None:
    first = rng.randrange(len(data))
    part = data[first : first + rng.randrange(1, 257)]
    data[first:first] = part * rng.choice((1, 2, 30))


def _insert(data: bytearray, rng: Random) -> None:
    first = rng.randrange(len(data) + 1)
    data[first:first] = rng.randbytes(rng.randrange(1, 65))


def _swap(data: bytearray, rng: Random) -> None:
    size = rng.randrange(1, max(2, len(data) // 4))
    one, other = (rng.randrange(max(1, len(data) - size)) for _ in range(2))
    kept = bytes(data[one : one + size])
    data[one : one + size] = data[other : other + size]
    data[other : other + size] = kept


def _number(data: bytearray, rng: Random) -> None:
    code = rng.choice(("<H", ">H", "<I", ">I"))
    value = rng.choice(AWKWARD)
    packed = struct.pack(code, value & (0xFFFF if code[1] == "H" else 0xFFFFFFFF))
    last = min(len(data), rng.choice((HEADER_BYTES, len(data)))) - len(packed)
    if last > 0:
        first = rng.randrange(last + 1)
        data[first : first + len(packed)] = packed


MUTATIONS: tuple[Callable[[bytearray, Random], None], ...] = (_flip, _fill, _remove, _repeat, _insert, _swap, _number)


def mutated(data: bytes, rng: Random) -> bytes:
    """The bytes with one to four kinds of damage."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if changed:
            rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed)


def zeros(size: int, wbits: int) -> bytes:
    """So many compressed zeros, in about a thousandth of the bytes; `wbits` is zlib's. A megabyte's are repeated."""
    packer, block = zlib.compressobj(9, wbits=wbits), bytes(2**20)
    start = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    # The checksum at the end is of two; a reader finds that out when it has unpacked everything.
    return start + repeated * (size // 2**20 - 1) + packer.flush()


def truncated(data: bytes, rng: Random) -> bytes:
    """The beginning of the bytes."""
    return data[: rng.randrange(len(data))]

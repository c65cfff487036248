"""The corpus of both fuzzers: input number n of a seed is always the same, so that it can be sent again alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any

from lab.faults.fuzz.grpc import GrpcFuzzer
from lab.faults.fuzz.http import MOST_BYTES, HttpFuzzer
from lab.faults.fuzz.inputs import Input

# How many of a hundred inputs are of a family.
SHARES = {
    "mutated images": 20,
    "truncated images": 8,
    "bombs": 10,
    "parts": 6,
    "a photograph": 1,
    "49 megapixels": 1,
    "as large as may be": 1,
    "forms": 9,
    "JSON": 11,
    "binary tensors": 2,
    "bodies": 2,
    "heads": 3,
    "HTTP": 13,
    "gRPC messages": 4,
    "gRPC calls": 1,
    "gRPC fields": 6,
    "HTTP/2 frames": 2,
}
LARGE = ("49 megapixels", "as large as may be")
# Smaller inputs are not made from images that are megabytes themselves.
LEAST_FOR_LARGE = 8 * 2**20
SIZES = (8, 2**10, 2**16, 2**18, 2**20, 2**23, MOST_BYTES)
# One input in four goes to the next route or method, with whatever can be made for it.
NEXT_ENDPOINT = 4


class Corpus:
    """Every pair of an endpoint and a kind, in an order of the seed's; each round with other sizes.

    Attributes:
        endpoints: routes and gRPC methods, each with its fuzzer.
        kinds: the pairs, by the family of the kind.
    """

    def __init__(self, document: Mapping[str, Any], seed: int, key: str = "", largest: int = MOST_BYTES) -> None:
        """List what can be made.

        Args:
            document: the server's OpenAPI document.
            seed: decides the order, and with its number each input.
            key: shown by 7 of 10 inputs; empty for none.
            largest: about how many bytes an input may have.
        """
        self._seed, self._key = seed, key
        self._sizes = [size for size in SIZES if size <= largest]
        fuzzers = HttpFuzzer(document), GrpcFuzzer()
        self.endpoints = [(fuzzer, where) for fuzzer in fuzzers for where in fuzzer.endpoints]
        self.kinds: dict[str, list[tuple[HttpFuzzer | GrpcFuzzer, str, str]]] = defaultdict(list)
        for fuzzer, where in self.endpoints:
            for what in fuzzer.kinds[where]:
                family = what.partition(":")[0]
                if family not in LARGE or largest >= LEAST_FOR_LARGE:
                    self.kinds[family].append((fuzzer, where, what))
        self._families = [family for family in self.kinds for _ in range(SHARES[family])]
        rng = Random(seed)
        rng.shuffle(self.endpoints)
        rng.shuffle(self._families)
        for several in self.kinds.values():
            rng.shuffle(several)

    def made(self, number: int) -> Input:
        """Make the input of this number."""
        rng = Random(f"{self._seed}/{number}")
        turn, rest = divmod(number, NEXT_ENDPOINT)
        if rest == NEXT_ENDPOINT - 1:
            fuzzer, where = self.endpoints[turn % len(self.endpoints)]
            what = rng.choice([each for each in fuzzer.kinds[where] if each.partition(":")[0] not in LARGE])
            # Each endpoint is asked with a key and without in turn.
            shows_key = turn // len(self.endpoints) % 2 == 0
        else:
            fuzzer, where, what = self._next(turn * (NEXT_ENDPOINT - 1) + rest)
            shows_key = rng.random() < 0.7
        # This input shows a key of its own, which is nobody's.
        key = self._key if shows_key and what != "HTTP: a long key" else ""
        return fuzzer.made(where, what, key, rng, round(rng.choice(self._sizes) * rng.uniform(0.6, 1)))

    def _next(self, number: int) -> tuple[HttpFuzzer | GrpcFuzzer, str, str]:
        """Return the pair of a number: the families take turns by their shares, and so do the pairs of each."""
        rounds, place = divmod(number, len(self._families))
        family = self._families[place]
        turn = rounds * SHARES[family] + self._families[:place].count(family)
        return self.kinds[family][turn % len(self.kinds[family])]

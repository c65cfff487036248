"""The requests: number n of a seed is always the same, so that one that cost much can be sent again alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from lab.faults.amplification import bodies, messages
from lab.faults.amplification.endpoints import Endpoint, methods, routes
from lab.faults.hostile.inputs import Input, request

# The most bytes of a request: the server's limit, less what a head takes.
MOST_BYTES = 32 * 2**20 - 2**16
# Before they are compressed gRPC's messages may be larger.
MOST_UNPACKED = 128 * 2**20
SIZES = (8, 2**10, 2**16, 2**18, 2**20, 2**23, MOST_BYTES)
# A request takes some seconds at most on its way, of the millisecond between two pieces.
MOST_PIECES = 2000


@dataclass(frozen=True)
class Costly:
    """A request of the corpus.

    Attributes:
        where: the route or method that it goes to.
        what: is large about it, and how it is sent.
        with_key: whether it shows a key.
        size: bytes on the wire, without the frames of HTTP/2.
        sent: what is sent.
    """

    where: str
    what: str
    with_key: bool
    size: int
    sent: Input


class Corpus:
    """Every pair of an endpoint and of something large, in an order of the seed's; each round with other sizes.

    The first requests go to each endpoint once with a key and once without.
    """

    def __init__(self, document: Mapping[str, Any], seed: int, key: str) -> None:
        """Set the server's OpenAPI document, the seed, and the key that some requests show."""
        self._seed, self._key = seed, key
        self.endpoints = [*routes(document), *methods()]
        self.pairs = [(endpoint, name) for endpoint in self.endpoints for name in makers(endpoint)]
        rng = Random(seed)
        rng.shuffle(self.endpoints)
        rng.shuffle(self.pairs)

    def made(self, index: int) -> Costly:
        """The request of this number."""
        rng = Random(f"{self._seed}/{index}")
        endpoint, name, with_key = self._chosen(index, rng)
        size = round(rng.choice(SIZES) * rng.uniform(0.6, 1))
        make = _by_grpc if endpoint.message is not None else _by_http
        how, length, sent = make(endpoint, name, size, self._key if with_key else "", rng)
        return Costly(endpoint.name, f"{name}{how}", with_key, length, sent)

    def _chosen(self, index: int, rng: Random) -> tuple[Endpoint, str, bool]:
        """An endpoint, what is large, and whether a key is shown; the longest key is nobody's."""
        if index < 2 * len(self.endpoints):
            endpoint = self.endpoints[index // 2]
            name = rng.choice([each for each in makers(endpoint) if each != bodies.LONG_KEY])
            return endpoint, name, index % 2 == 0
        endpoint, name = self.pairs[index % len(self.pairs)]
        return endpoint, name, rng.random() < 0.7 and name != bodies.LONG_KEY


def makers(endpoint: Endpoint) -> Mapping[str, Any]:
    """What may be large about a request to an endpoint, and what makes it."""
    return messages.messages(endpoint.message) if endpoint.message is not None else bodies.bodies(endpoint)


def _by_http(endpoint: Endpoint, name: str, size: int, key: str, rng: Random) -> tuple[str, int, Input]:
    made = makers(endpoint)[name](rng, size)
    how = ""
    if made.content and rng.random() < 0.25:
        encoding = rng.choice(("gzip", "deflate"))
        made, how = bodies.packed(made, encoding, rng), f", by {encoding}"
    headers = ({"Authorization": f"Bearer {key}"} if key else {}) | made.headers
    content, chunked = made.content, rng.random() < 0.1
    if chunked and len(content) < MOST_BYTES // 6:
        # Six bytes on the wire for each.
        content = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
        how += ", in chunks of a byte"
    content = content[: MOST_BYTES + 2**15]
    whole = request(endpoint.method, endpoint.path + made.query, headers, content)
    if chunked and how.endswith("a byte"):
        whole = whole.replace(b"\r\nContent-Length: %d\r\n" % len(content), b"\r\nTransfer-Encoding: chunked\r\n", 1)
    pieces = rng.randrange(2, MOST_PIECES) if rng.random() < 0.1 else 1
    how += f", in {pieces} pieces" if pieces > 1 else ""
    return how, len(whole), Input(f"{endpoint.name}: {name}", whole, pieces=pieces)


def _by_grpc(endpoint: Endpoint, name: str, size: int, key: str, rng: Random) -> tuple[str, int, Input]:
    packing: Any = rng.choice(("", "", "gzip", "deflate"))
    if packing and size > SIZES[-3] and rng.random() < 0.5:
        size *= MOST_UNPACKED // MOST_BYTES
    content = makers(endpoint)[name](rng, size)
    # By the library's own way of compressing it.
    length = len(zlib.compress(content)) if packing else len(content)
    how = f", {len(content):,} bytes by {packing}" if packing else ""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    sent = Input(f"{endpoint.name}: {name}", content, "grpc", endpoint.path, metadata, packing=packing)
    return how, length, sent

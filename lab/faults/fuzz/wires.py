"""HTTP that stands wrong on the wire: starts, heads, lengths, and requests that two readers would cut apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from lab.faults.fuzz.images import photograph
from lab.faults.fuzz.inputs import CASES, damaged

# HAProxy takes heads of about as much.
HEAD_BYTES = 12_000
# What a reader that is fooled takes for the beginning of the next request, which is another client's.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX: "


@dataclass
class Draft:
    """A request that is being made.

    Attributes:
        body: what follows the head.
        lines: of the head, besides `Host`, `Connection`, the key and the length.
        query: with its question mark.
        start: the first line, where it is not the endpoint's own.
        length: the line on the body's length, where it is not the right one.
        raw: all that is sent, where it is not a request.
        connection: the header of this name.
        whole: see `Input`.
        due: see `Input`.
    """

    body: bytes = b""
    lines: list[bytes] = field(default_factory=list)
    query: bytes = b""
    start: bytes = b""
    length: bytes | None = None
    raw: bytes = b""
    connection: bytes = b"close"
    whole: bool = True
    due: frozenset[str] = frozenset()


Kind = Callable[[Random, int], Draft]


LATE = frozenset({"504"})


def _upgrade(rng: Random) -> Draft:
    start = rng.choice((b"GET /", b"GET /classify", b"POST /classify", b"GET /v2")) + b" HTTP/1.1"
    body = rng.choice((b"", rng.randbytes(100), b"\x81\x05hello"))
    upgrade, connection = rng.choice(CASES["upgrades"]), b"Upgrade, HTTP2-Settings"
    return Draft(body, [upgrade], start=start, length=b"Content-Length: 0", connection=connection)


def _damaged_head(rng: Random) -> Draft:
    head = b"POST /classify?top_k=1&members=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(photograph())
    return Draft(raw=damaged(head + length, rng) + photograph())


def _smuggling(rng: Random) -> Draft:
    line = rng.choice(CASES["smuggling"])
    body = (b"0\r\n\r\n" if b"oding" in line else b"") + SMUGGLED
    declared = rng.choice((len(body), 0, 4, len(body) - len(SMUGGLED)))
    return Draft(body, length=b"Content-Length: %d\r\n%b" % (declared, line), whole=False)


def _start(rng: Random, method: bytes, path: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b" ".join((method, path + rng.choice((b"", rng.choice(CASES["queries"]))), version))


def _chunks(rng: Random) -> bytes:
    return b"%b\r\nhello\r\n%b" % (rng.choice(CASES["chunk_sizes"]), rng.choice(CASES["chunk_ends"]))


# One of the queries allows a millisecond.
_MADE: dict[str, Callable[[Random], Draft]] = {
    "paths": lambda rng: Draft(start=_start(rng, rng.choice((b"GET", b"POST")), rng.choice(CASES["paths"])), due=LATE),
    "queries": lambda rng: Draft(photograph(), query=rng.choice(CASES["queries"]), due=LATE),
    "methods and versions": lambda rng: Draft(
        start=_start(
            rng, rng.choice(CASES["methods"]), rng.choice((b"/classify", b"/v2")), rng.choice(CASES["versions"])
        ),
        whole=False,
    ),
    "headers": lambda rng: Draft(photograph(), rng.choices(CASES["headers"], k=rng.choice((1, 1, 3))), whole=False),
    "upgrades": _upgrade,
    "other protocols": lambda rng: Draft(raw=rng.choice((*CASES["strangers"], rng.randbytes(1_000)))),
    "damaged heads": _damaged_head,
    "lengths": lambda rng: Draft(photograph(), length=rng.choice(CASES["lengths"]), whole=False),
    "chunks": lambda rng: Draft(_chunks(rng), length=rng.choice(CASES["codings"]), whole=False),
    "smuggling": _smuggling,
}
WIRES: dict[str, Kind] = {
    **{f"HTTP: {name}": partial(lambda make, rng, size: make(rng), make) for name, make in _MADE.items()},
    "HTTP: a long key": lambda rng, size: Draft(lines=[b"Authorization: Bearer " + b"k" * min(size, HEAD_BYTES)]),
}

"""HTTP that stands wrong on the wire: starts, heads, lengths, and requests that two readers would cut apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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


def _path(rng: Random, size: int) -> Draft:
    start = (
        rng.choice((b"GET ", b"POST ")) + rng.choice(CASES["paths"]) + rng.choice((b"", rng.choice(CASES["queries"])))
    )
    return Draft(start=start + b" HTTP/1.1", due=frozenset({"504"}))


def _query(rng: Random, size: int) -> Draft:
    # One of them allows a millisecond.
    return Draft(photograph(), query=rng.choice(CASES["queries"]), due=frozenset({"504"}))


def _start(rng: Random, size: int) -> Draft:
    method, version = rng.choice(CASES["methods"]), rng.choice(CASES["versions"])
    return Draft(start=b" ".join((method, rng.choice((b"/classify", b"/v2")), version)), whole=False)


def _headers(rng: Random, size: int) -> Draft:
    lines = [rng.choice(CASES["headers"]) for _ in range(rng.choice((1, 1, 3)))]
    return Draft(photograph(), lines, whole=False)


def _upgrade(rng: Random, size: int) -> Draft:
    start = rng.choice((b"GET /", b"GET /classify", b"POST /classify", b"GET /v2")) + b" HTTP/1.1"
    body = rng.choice((b"", rng.randbytes(100), b"\x81\x05hello"))
    upgrade, connection = rng.choice(CASES["upgrades"]), b"Upgrade, HTTP2-Settings"
    return Draft(body, [upgrade], start=start, length=b"Content-Length: 0", connection=connection)


def _stranger(rng: Random, size: int) -> Draft:
    return Draft(raw=rng.choice((*CASES["strangers"], rng.randbytes(1_000))))


def _damaged_head(rng: Random, size: int) -> Draft:
    head = b"POST /classify?top_k=1&members=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(photograph())
    return Draft(raw=damaged(head + length, rng) + photograph())


def _length(rng: Random, size: int) -> Draft:
    return Draft(photograph(), length=rng.choice(CASES["lengths"]), whole=False)


def _chunks(rng: Random, size: int) -> Draft:
    body = rng.choice(CASES["chunk_sizes"]) + b"\r\nhello\r\n" + rng.choice(CASES["chunk_ends"])
    return Draft(body, length=rng.choice(CASES["codings"]), whole=False)


def _smuggling(rng: Random, size: int) -> Draft:
    line = rng.choice(CASES["smuggling"])
    body = (b"0\r\n\r\n" if b"oding" in line else b"") + SMUGGLED
    declared = rng.choice((len(body), 0, 4, len(body) - len(SMUGGLED)))
    return Draft(body, length=b"Content-Length: %d\r\n%b" % (declared, line), whole=False)


def _long_key(rng: Random, size: int) -> Draft:
    return Draft(lines=[b"Authorization: Bearer " + b"k" * min(size, HEAD_BYTES)])


WIRES: dict[str, Kind] = {
    "HTTP: paths": _path,
    "HTTP: queries": _query,
    "HTTP: methods and versions": _start,
    "HTTP: headers": _headers,
    "HTTP: upgrades": _upgrade,
    "HTTP: other protocols": _stranger,
    "HTTP: damaged heads": _damaged_head,
    "HTTP: lengths": _length,
    "HTTP: chunks": _chunks,
    "HTTP: smuggling": _smuggling,
    "HTTP: a long key": _long_key,
}

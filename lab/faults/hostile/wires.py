"""Hostile HTTP: heads, paths, upgrades, and requests that two readers would cut apart at different places."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lab.faults.hostile.inputs import Input, classify, request
from lab.faults.hostile.mutations import mutated, truncated
from lab.faults.hostile.pictures import well_formed

PATHS = (
    b"/",
    b"//classify",
    b"/classify/",
    b"/classify/../classify",
    b"/%63lassify",
    b"/classify%00",
    b"/classify%2f..%2f..%2fetc%2fpasswd",
    b"/../../etc/passwd",
    b"/v2/models/ensemble/versions/999999999999999999999999",
    b"/v2/models/%ff%fe",
    b"/v2/models/\xff\xfe",
    b"/docs/../../../etc/passwd",
    b"/docs/swagger-ui.css%00",
    b"/-/healthz",
    b"/-/routes",
    b"/" + b"a" * 4_000,
    b"/" + b"a" * 100_000,
    b"/" + b"a/" * 2_000,
    b"*",
    b"http://elsewhere/classify",
    b"http://[::1",
    b"elsewhere:80",
    b"/classify#fragment",
    b"/class ify",
    b"/\x01\x02",
)
QUERIES = (
    b"?",
    b"?top_k",
    b"?top_k=%ff",
    b"?top_k=" + b"9" * 5_000,
    b"?top_k=1&top_k=2",
    b"?" + b"&" * 3_000,
    b"?" + b"a=b&" * 2_500,
    b"?members=%00",
    b"?timeout_ms=1e3",
    b"?timeout_ms=NaN",
    b"?timeout_ms=1",
    b"?%ud800=1",
    b"?x=" + b"y" * 8_000,
    b"?top_k=\xff",
    b"?top_k=\xd9\xa1",
)
METHODS = (
    b"GET",
    b"PUT",
    b"TRACE",
    b"OPTIONS",
    b"CONNECT",
    b"post",
    b"P" * 5_000,
    b"PO ST",
    b"\xff",
    b"HEAD",
    b"DELETE",
    b"PATCH",
)
VERSIONS = (b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 x", b"ICY", b"", b"HTTP/1.1\0")
HEADERS = (
    b"X: " + b"y" * 7_000,
    b"X: " + b"y" * 100_000,
    b"\r\n".join(b"X-%d: y" % number for number in range(95)),
    b"\r\n".join(b"X-%d: y" % number for number in range(5_000)),
    b"Host: other",
    b"Content-Type: image/jpeg\r\nContent-Type: text/plain",
    b"Content-Type: \xff\xfe",
    b"Content-Type: image/" + b"x" * 5_000,
    b"Content-Encoding: gzip",
    b"Content-Encoding: br, br, br",
    b"Expect: 100-continue",
    b"Expect: 200-maybe",
    b"X: \0",
    b"X : y",
    b" X: y",
    b"X: a\r\n b",
    b"no colon",
    b": empty",
    b"\xff\xfe: \xff",
    b"traceparent: 00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-ff",
    b"traceparent: \xff" * 20,
    b"tracestate: " + b"a=b," * 1_000,
    b"Range: bytes=0-0," * 50,
    b"Connection: close, keep-alive, host",
    b"Connection: content-length",
    b"Accept: " + b"*/*;q=" * 500,
    b"Inference-Header-Content-Length: -1",
    b"serve_multiplexed_model_id: x\r\nX-Request-ID: " + b"z" * 3_000,
    b"Cookie: " + b"a=b; " * 1_000,
    b"Trailer: Content-Length",
)
UPGRADES = (
    b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13",
    b"Upgrade: websocket",
    b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 99",
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    b"Upgrade: h2c\r\nHTTP2-Settings: \xff",
    b"Upgrade: TLS/1.0",
    b"Upgrade: " + b"x, " * 500,
)
# What a reader that is fooled takes for the beginning of the next request, which is another client's.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX: "


def _head(start: bytes, *lines: bytes, body: bytes = b"", length: bool = True) -> bytes:
    declared = (b"Content-Length: %d" % len(body),) if length else ()
    return b"\r\n".join([start, b"Host: localhost", *declared, *lines]) + b"\r\n\r\n" + body


def _paths(rng: Random) -> Input:
    start = rng.choice((b"GET ", b"POST ")) + rng.choice(PATHS) + rng.choice((b"", rng.choice(QUERIES))) + b" HTTP/1.1"
    return Input("HTTP: paths", _head(start, b"Connection: close"), due=frozenset({"504"}))


def _queries(rng: Random) -> Input:
    start = b"POST /classify" + rng.choice(QUERIES) + b" HTTP/1.1"
    content = _head(start, b"Connection: close", body=well_formed("jpeg", rng))
    # A millisecond is what one of them allows.
    return Input("HTTP: queries", content, due=frozenset({"504"}))


def _starts(rng: Random) -> Input:
    start = (
        rng.choice(METHODS) + b" " + rng.choice((b"/classify", b"/v2")) + b" " + rng.choice((b"HTTP/1.1", *VERSIONS))
    )
    return Input("HTTP: methods and versions", _head(start, b"Connection: close"), whole=False)


def _headers(rng: Random) -> Input:
    lines = [rng.choice(HEADERS) for _ in range(rng.choice((1, 1, 3)))]
    image = well_formed("jpeg", rng)
    return Input(
        "HTTP: headers", _head(b"POST /classify HTTP/1.1", b"Connection: close", *lines, body=image), whole=False
    )


def _upgrades(rng: Random) -> Input:
    method, target = rng.choice(((b"GET", b"/"), (b"GET", b"/classify"), (b"POST", b"/classify"), (b"GET", b"/v2")))
    head = _head(method + b" " + target + b" HTTP/1.1", b"Connection: Upgrade, HTTP2-Settings", rng.choice(UPGRADES))
    return Input("HTTP: upgrades", head + rng.choice((b"", rng.randbytes(100), b"\x81\x05hello")))


def _strangers(rng: Random) -> Input:
    content = rng.choice(
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
            b"SSH-2.0-x\r\n",
            b"EHLO x\r\n",
            b"\r\n" * 1_000,
            b"\0" * 5_000,
            b"GET /\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            rng.randbytes(1_000),
        )
    )
    return Input("HTTP: other protocols", content, whole=False)


def _damaged(rng: Random) -> Input:
    whole = classify(well_formed("jpeg", rng), top_k="1", members="true")
    head, _, body = whole.partition(b"\r\n\r\n")
    return Input("HTTP: damaged heads", rng.choice((mutated, truncated))(head + b"\r\n\r\n", rng) + body, whole=False)


def _lengths(rng: Random) -> Input:
    image = well_formed("jpeg", rng)
    declared = rng.choice(
        (
            b"Content-Length: -1",
            b"Content-Length: +5",
            b"Content-Length: 0x10",
            b"Content-Length: 1e3",
            b"Content-Length: 5, 5",
            b"Content-Length: 5\r\nContent-Length: 6",
            b"Content-Length: 99999999999999999999999",
            b"Content-Length: ",
            b"Content-Length: \xb2",
            b"Content-Length: %d" % (len(image) + 1000),
            b"Content-Length: %d" % (len(image) // 2),
            b"Content-Length: 40000000",
            b"X: y",
        )
    )
    head = _head(b"POST /classify HTTP/1.1", b"Connection: close", declared, length=False)
    return Input("HTTP: lengths", head + image, whole=False)


def _chunks(rng: Random) -> Input:
    size = rng.choice(
        (b"5", b"0x5", b"-5", b"+5", b"5;x=" + b"y" * 5_000, b"ffffffffffffffff", b"5 ", b"", b"g", b"05" * 20)
    )
    ending = rng.choice(
        (b"0\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 2_000 + b"\r\n", b"0\n\n", b"")
    )
    line = rng.choice(
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity")
    )
    head = _head(b"POST /classify HTTP/1.1", b"Connection: close", line, length=False)
    return Input("HTTP: chunks", head + size + b"\r\nhello\r\n" + ending, whole=False)


def _smuggling(rng: Random) -> Input:
    both = rng.choice(
        (
            (b"Transfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
            (b"Transfer-Encoding : chunked", b"0\r\n\r\n" + SMUGGLED),
            (b"Transfer-Encoding: xchunked", b"0\r\n\r\n" + SMUGGLED),
            (b"Transfer-Encoding:\tchunked", b"0\r\n\r\n" + SMUGGLED),
            (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n" + SMUGGLED),
            (b"X: y\nTransfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
            (b"transfer-encoding: CHUNKED", b"0\r\n\r\n" + SMUGGLED),
            (b"Content-Length: 0", SMUGGLED),
            (b"X: y", SMUGGLED),
        )
    )
    line, body = both
    length = rng.choice((len(body), 0, 4, len(body) - len(SMUGGLED)))
    head = _head(b"POST /classify HTTP/1.1", b"Content-Length: %d" % length, line, length=False)
    return Input("HTTP: smuggling", head + body, whole=False)


def _types(rng: Random) -> Input:
    declared = rng.choice(
        (
            "text/html",
            "image/",
            "/",
            ";",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "\xff",
            "a" * 6_000,
        )
    )
    return Input(
        "HTTP: content types",
        request("POST", rng.choice(("/classify", "/v2/models/ensemble/infer")), {"Content-Type": declared}, b"x=y"),
    )


WIRES: tuple[Callable[[Random], Input], ...] = (
    _paths,
    _queries,
    _starts,
    _headers,
    _headers,
    _upgrades,
    _strangers,
    _damaged,
    _damaged,
    _lengths,
    _chunks,
    _smuggling,
    _smuggling,
    _types,
)

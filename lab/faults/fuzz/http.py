"""The fuzzer for HTTP: requests to every route of an OpenAPI document, and bytes that no client would write."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

from lab.faults.fuzz.images import IMAGES, photograph
from lab.faults.fuzz.inputs import CASES, MIB, MOST_BYTES, Input, Make, damaged, several, stretched, zeros

JSON, FORM = b"Content-Type: application/json", b"Content-Type: multipart/form-data; boundary=b"
PART = b'\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
# HAProxy takes heads of about as much.
HEAD_BYTES = 12_000
MOST_PIECES = 2000
# In place of a name in a path, so that no member is unloaded.
NOBODY, NAME = "nobody", re.compile(r"\{\w+\}")
# Stands in a JSON text where another value will; an image's base64 never holds it.
PLACE = "\u2063"
HOST = b"Host: localhost\r\n"


class Draft(NamedTuple):
    """A request: its body, a line of its head besides the usual ones, and its query; or all that is sent, `raw`.

    Attributes:
        whole: see `Input`.
    """

    body: bytes = b""
    line: bytes = b""
    query: bytes = b""
    raw: bytes = b""
    whole: bool = True


Kind = Callable[[Random, int], Draft]
# A JSON body of the corpus.
Document = dict[str, bytes]


class HttpFuzzer:
    """Makes inputs for every route of an OpenAPI document, and for those that it leaves out.

    Attributes:
        kinds: by method and path, what can be made for the route.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the document."""
        self.kinds = {where: kinds(where) for where in routes(document)}

    def made(self, where: str, what: str, key: str, rng: Random, size: int) -> Input:
        """Make an input of a kind."""
        draft = self.kinds[where][what](rng, size)
        content, pieces = draft.raw, 1
        if not content:
            head, body, done = _encoded(draft, rng)
            method, _, path = where.partition(" ")
            start = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), path.encode(), draft.query)
            content = start + HOST + b"Connection: close\r\n" + head + b"\r\n" + body
            pieces = rng.randrange(2, MOST_PIECES) if rng.random() < 0.05 else 1
            what += done + (f", in {pieces} pieces" if pieces > 1 else "")
        shown = bool(key) and HOST in content
        if shown:
            content = content.replace(HOST, HOST + b"Authorization: Bearer " + key.encode() + b"\r\n", 1)
        documented = draft.whole and not what.startswith(("heads", "HTTP"))
        return Input(where, what, content, with_key=shown, whole=draft.whole, documented=documented, pieces=pieces)


def routes(document: Mapping[str, Any]) -> list[str]:
    """Return the method and path of every route of an OpenAPI document, and of those that it leaves out."""
    listed = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    return [NAME.sub(NOBODY, each) for each in (*listed, *(each.decode() for each in CASES["unlisted"]))]


def _encoded(draft: Draft, rng: Random) -> tuple[bytes, bytes, str]:
    """Return a request's lines and body, compressed or in chunks of a byte now and then, and what was done to it."""
    head, body, done = draft.line + b"\r\n" if draft.line else b"", draft.body, ""
    if rng.random() < 0.2 and b"Content-Encoding" not in head:
        encoding, wbits = rng.choice((("gzip", 31), ("deflate", 15)))
        packer = zlib.compressobj(rng.choice((1, 9)) if len(body) < MIB else 1, wbits=wbits)
        body = packer.compress(body) + packer.flush()
        head += f"Content-Encoding: {encoding}\r\n".encode()
        done += f", by {encoding}"
    body = body[: MOST_BYTES + 2**15]
    # A byte is six on the wire.
    if rng.random() < 0.05 and len(body) <= MOST_BYTES // 6:
        body = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        return head + b"Transfer-Encoding: chunked\r\n", body, done + ", in chunks of a byte"
    return head + b"Content-Length: %d\r\n" % len(body), body, done


def kinds(where: str) -> dict[str, Kind]:
    """Return what can be sent to a route, by what is hostile or large about it."""
    method, _, path = where.partition(" ")
    made = dict(BODIES)
    for end, body in CASES["documents"].items():
        if path.endswith(end) and method == "POST":
            made |= {f"JSON: {name}": partial(_long_value, body, name) for name in CASES["long_json"]}
            made["JSON: a wrong value"] = partial(_wrong_value, body)
            made["JSON: damaged"] = partial(_damaged_json, body)
            made["JSON: odd text"] = lambda rng, size: Draft(rng.choice(CASES["odd_texts"]), JSON)
            if "each" in body:
                made |= {f"{name}, in JSON": partial(_in_json, body, make) for name, make in IMAGES.items()}
    if path == "/feedback":
        made["JSON: many labels, a line each"] = _labels
    if path.endswith("/infer"):
        made |= TENSORS
    if path == "/classify":
        made |= FORMS | WIRES
    return made


# Bodies and heads for every route.
def _zeros(rng: Random, size: int) -> Draft:
    """Return as many compressed zeros as a thousand times the size."""
    encoding, wbits = rng.choice(((b"gzip", 31), (b"deflate", 15)))
    return Draft(zeros(max(2, min(size, 8 * MIB) // 1000) * MIB, wbits), b"Content-Encoding: " + encoding)


def _blocks(rng: Random, size: int) -> Draft:
    """Return a stream of zlib's that goes on and on and holds nothing: empty blocks, stored or of fixed codes."""
    block = rng.choice((b"\0\0\0\xff\xff", b"\x02\0\0\xff\xff"))
    return Draft(b"\x78\x9c" + block * (size // 5) + b"\x03\0\0\0\0\x01", b"Content-Encoding: deflate")


def _long_header(case: dict[str, bytes], rng: Random, size: int) -> Draft:
    return Draft(line=stretched(min(size, HEAD_BYTES), **case))


def _long_query(case: dict[str, bytes], rng: Random, size: int) -> Draft:
    return Draft(query=stretched(min(size, HEAD_BYTES), **case))


BODIES: dict[str, Kind] = {
    "bodies: nothing": lambda rng, size: Draft(),
    "bodies: zeros": lambda rng, size: Draft(bytes(size)),
    "bodies: a bomb of zeros": _zeros,
    "bodies: compressed empty blocks": _blocks,
    **{f"heads: {name}": partial(_long_header, case) for name, case in CASES["long_headers"].items()},
    **{f"heads: {name}": partial(_long_query, case) for name, case in CASES["long_queries"].items()},
}


# JSON.
def filled(document: Document, images: list[bytes]) -> bytes:
    """Return a JSON body with images that the server answers."""
    each = b",".join(document.get("each", b"").replace(b"@", base64.b64encode(image)) for image in images)
    return document["text"].replace(b"@", each).replace(b"#", b"%d" % len(images))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document: what holds it, and its name or position there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)


def _with(document: Document, text: bytes, rng: Random) -> Draft:
    """Return a request in one place of which this text stands; the place may be the whole."""
    outer = [json.loads(filled(document, [photograph()]))]
    holder, key = rng.choice(list(_places(outer)))
    holder[key] = PLACE
    return Draft(json.dumps(outer[0]).encode().replace(json.dumps(PLACE).encode(), text), JSON)


def _long_value(document: Document, name: str, rng: Random, size: int) -> Draft:
    return _with(document, stretched(size, **CASES["long_json"][name]), rng)


def _wrong_value(document: Document, rng: Random, size: int) -> Draft:
    return _with(document, rng.choice(CASES["values"]), rng)


def _damaged_json(document: Document, rng: Random, size: int) -> Draft:
    return Draft(damaged(filled(document, [photograph()]), rng), JSON)


def _in_json(document: Document, make: Make, rng: Random, size: int) -> Draft:
    return Draft(filled(document, several(make, rng, size)), JSON)


def _labels(rng: Random, size: int) -> Draft:
    line = rng.choice((b'{"request_id":"a","label":0}\n', b"{}\n", b"\n"))
    return Draft(line * (min(size, MIB) // len(line)), b"Content-Type: application/x-ndjson")


# Binary tensors.
def _binary(content: bytes, shape: list[int], blanks: bytes = b"", **more: str) -> Draft:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape, "parameters": parameters, **more}
    head = json.dumps({"inputs": [tensor]}).encode() + blanks
    return Draft(head + content, b"Inference-Header-Content-Length: %d" % len(head))


def _pixels(rng: Random, size: int) -> Draft:
    rows = size // 3072
    return _binary(bytes(3072 * rows), [rows, 32, 32, 3], name="pixels", datatype="UINT8")


def _raw(make: Make, rng: Random, size: int) -> Draft:
    images = several(make, rng, size)
    return _binary(b"".join(struct.pack("<I", len(image)) + image for image in images), [len(images)])


TENSORS: dict[str, Kind] = {
    "binary tensors: empty elements": lambda rng, size: _binary(bytes(size // 4 * 4), [size // 4]),
    "binary tensors: a long header": lambda rng, size: _binary(b"", [0], b" " * size),
    "binary tensors: pixels": _pixels,
    **{f"{name}, in a binary tensor": partial(_raw, make) for name, make in IMAGES.items()},
}


# Images as they are, and forms.
def form(*contents: bytes, head: bytes = PART, boundary: bytes = b"b") -> bytes:
    """Return a form with a part for each content."""
    return b"".join(b"--%b%b%b\r\n" % (boundary, head, each) for each in contents) + b"--" + boundary + b"--\r\n"


def _image(make: Make, rng: Random, size: int) -> Draft:
    return Draft(make(rng, size), rng.choice((b"Content-Type: image/jpeg", b"Content-Type: application/octet-stream")))


def _in_form(make: Make, rng: Random, size: int) -> Draft:
    return Draft(form(*several(make, rng, size), boundary=b"b" * 60), FORM + b"b" * 59)


def _long_form(case: dict[str, bytes], rng: Random, size: int) -> Draft:
    return Draft(stretched(size, **case), FORM)


FORMS: dict[str, Kind] = {
    **{name: partial(_image, make) for name, make in IMAGES.items()},
    **{f"{name}, in a form": partial(_in_form, make) for name, make in IMAGES.items()},
    **{f"forms: {name}": partial(_long_form, case) for name, case in CASES["long_forms"].items()},
    "forms: damaged": lambda rng, size: Draft(damaged(form(*[photograph()] * rng.randrange(1, 4)), rng), FORM),
    "forms: many parts": lambda rng, size: Draft(form(*[b""] * rng.choice((63, 65, 1000, 20_000))), FORM),
    "forms: odd heads": lambda rng, size: Draft(form(photograph(), head=rng.choice(CASES["form_heads"])), FORM),
}


# HTTP that stands wrong on the wire, and requests that two readers would cut apart at different places.
def _wrong(wire: dict[str, bytes], rng: Random, size: int) -> Draft:
    raw = wire["request"].replace(b"@", rng.choice(CASES[wire["cases"].decode()]), 1)
    return Draft(raw=raw, whole="whole" not in wire)


def _damaged_head(rng: Random, size: int) -> Draft:
    head = b"POST /classify?top_k=1&members=true HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(photograph())
    return Draft(raw=damaged(head + length, rng) + photograph(), whole=False)


WIRES: dict[str, Kind] = {
    **{f"HTTP: {name}": partial(_wrong, wire) for name, wire in CASES["wires"].items()},
    "HTTP: damaged heads": _damaged_head,
    "HTTP: a long key": lambda rng, size: Draft(line=b"Authorization: Bearer " + b"k" * min(size, HEAD_BYTES)),
}

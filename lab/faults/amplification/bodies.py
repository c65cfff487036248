"""Bodies and heads of HTTP requests that are cheap to send, by what an endpoint takes."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from lab.faults.amplification.endpoints import UNLISTED, Endpoint
from lab.faults.amplification.images import IMAGES
from lab.faults.amplification.texts import TEXTS, body
from lab.faults.hostile.forms import form, part
from lab.faults.hostile.mutations import zeros

MIB = 2**20
# HAProxy takes heads of about as much.
HEAD_BYTES = 12_000
# An image in JSON or a form may come as often as this, in about as many bytes together.
MOST_IMAGES, MOST_IMAGE_BYTES = 64, 23 * MIB
# JSON with images; another name of a path is not asked with all of them again.
TAKE_IMAGES = ("/infer", ":predict", ":classify")
JSON = {"Content-Type": "application/json"}
BINARY = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Body:
    """What an HTTP request has besides its path.

    Attributes:
        content: its body.
        headers: its own, without a length.
        query: with its question mark, if any.
    """

    content: bytes = b""
    headers: dict[str, str | bytes] = field(default_factory=dict)
    query: str = ""


Make = Callable[[Random, int], Body]

LONG_KEY = "a long key"
# Headers by what is large about them.
HEADS: dict[str, Callable[[int], dict[str, str | bytes]]] = {
    "a long header": lambda n: {"X": "y" * n},
    "many headers": lambda n: {f"X-{number}": "" for number in range(min(90, n // 8))},
    LONG_KEY: lambda n: {"Authorization": "Bearer " + "k" * n},
    "a long trace": lambda n: {"traceparent": "0" * (n // 2), "tracestate": "a=b," * (n // 8)},
    "a long content type": lambda n: {"Content-Type": "image/" + ";" * n},
    "a long boundary": lambda n: {"Content-Type": "multipart/form-data; boundary=" + "b" * n},
    "many directives": lambda n: {"Cache-Control": "no-cache," * (n // 9)},
    "a long name of a request": lambda n: {"Idempotency-Key": "i" * n, "X-Request-ID": "r" * (n // 2)},
}
QUERIES: dict[str, Callable[[int], str]] = {
    "a query of many names": lambda n: "?" + "&".join(f"{number:x}=" for number in range(n // 6)),
    "a query of one name": lambda n: "?" + "top_k=1&" * (n // 8),
    "a query of a long number": lambda n: "?top_k=" + "9" * n,
    "a query of escapes": lambda n: "?top_k=" + "%31" * (n // 3),
}


def _parts(head: bytes, size: int) -> bytes:
    return head * max(1, size // len(head)) + b"--b--\r\n"


FORMS: dict[str, Callable[[int], bytes]] = {
    "a form of empty parts": partial(_parts, b"--b" + part(b"image", b"")),
    "a form of empty fields": partial(_parts, b"--b" + part(b"image", b"", None)),
    "a form of parts without a name": partial(_parts, b"--b\r\n\r\n\r\n"),
    "a form of boundaries": partial(_parts, b"--b\r\n"),
    "a form of almost boundaries": lambda n: form([part(b"image", b"\r\n--a" * (n // 5))]),
    "a form of line ends": lambda n: form([part(b"image", b"\r\n" * (n // 2))]),
    "a form of returns": lambda n: form([part(b"image", b"\r" * n)]),
    "a form after line ends": lambda n: b"\r\n" * (n // 2) + form([part(b"image", b"")]),
    "a form after other text": lambda n: b"-" * n + form([part(b"image", b"")]),
    "a form and more behind it": lambda n: form([part(b"image", b"")]) + b"\r\n--b" * (n // 5),
    "a form of a long header": lambda n: form([part(b"image", b"", more=b"X: " + b"y" * n + b"\r\n")]),
    "a form of many headers": lambda n: form([part(b"image", b"", more=b"X:\r\n" * (n // 4))]),
    "a form of a long name": lambda n: form([part(b"i" * n, b"")]),
    "a form of a long file name": lambda n: form([part(b"image", b"", b'\\"' * (n // 2))]),
}


def bodies(endpoint: Endpoint) -> dict[str, Make]:
    """What may be sent to a route, by what is large about it."""
    made: dict[str, Make] = {"nothing": lambda rng, size: Body(), "zeros": lambda rng, size: Body(bytes(size))}
    made |= {name: partial(_head, headers) for name, headers in HEADS.items()}
    made |= {name: partial(_query, query) for name, query in QUERIES.items()}
    made |= {"a bomb of zeros": _zeros, "a compressed body of empty blocks": _blocks}
    if endpoint.schema is not None:
        made |= {f"JSON: {name}": partial(_text, endpoint, name) for name in TEXTS}
    if endpoint.path.endswith(TAKE_IMAGES) and endpoint.path not in UNLISTED:
        made |= {f"JSON: 64 times {name}": partial(_encoded, endpoint, name) for name in IMAGES}
    if endpoint.path == "/feedback":
        made["many labels, a line each"] = _labels
    if endpoint.path.endswith("/infer"):
        made["binary tensors: empty elements"] = lambda rng, size: _binary(bytes(size // 4 * 4), [size // 4])
        made["binary tensors: a long header"] = lambda rng, size: _binary(b"", [0], b" " * size)
        made["binary tensors: pixels"] = _pixels
    if endpoint.path.endswith("ensemble/infer"):
        made |= {f"binary: {name}": partial(_raw, name) for name in IMAGES}
    if endpoint.takes_images:
        made |= {name: partial(_image, name) for name in IMAGES}
        made |= {name: partial(_form, make) for name, make in FORMS.items()}
        made |= {f"a form of 64 times {name}": partial(_images, name) for name in IMAGES}
    return made


def packed(made: Body, encoding: str, rng: Random) -> Body:
    """The same body, compressed."""
    if "Content-Encoding" in made.headers:
        return made
    level = rng.choice((1, 9)) if len(made.content) < MIB else 1
    packer = zlib.compressobj(level, wbits=31 if encoding == "gzip" else 15)
    content = packer.compress(made.content) + packer.flush()
    return replace(made, content=content, headers={**made.headers, "Content-Encoding": encoding})


def _head(headers: Callable[[int], dict[str, str | bytes]], rng: Random, size: int) -> Body:
    return Body(headers=headers(min(size, HEAD_BYTES)))


def _query(query: Callable[[int], str], rng: Random, size: int) -> Body:
    return Body(query=query(min(size, HEAD_BYTES)))


def _zeros(rng: Random, size: int) -> Body:
    """As many compressed zeros as a thousand times the size."""
    encoding = rng.choice(("gzip", "deflate"))
    content = zeros(max(2, min(size, 8 * MIB) // 1000) * MIB, 31 if encoding == "gzip" else 15)
    return Body(content, {"Content-Encoding": encoding})


def _blocks(rng: Random, size: int) -> Body:
    """A stream of zlib's that goes on and on and holds nothing: empty blocks, stored or of fixed codes."""
    block = rng.choice((b"\0\0\0\xff\xff", b"\x02\0\0\xff\xff"))
    return Body(b"\x78\x9c" + block * (size // 5) + b"\x03\0\0\0\0\x01", {"Content-Encoding": "deflate"})


def _labels(rng: Random, size: int) -> Body:
    line = rng.choice((b'{"request_id":"a","label":0}\n', b"{}\n", b"\n"))
    return Body(line * (min(size, MIB) // len(line)), {"Content-Type": "application/x-ndjson"})


def _text(endpoint: Endpoint, name: str, rng: Random, size: int) -> Body:
    return Body(body(endpoint.schema or {}, endpoint.schemas or {}, name, rng, size), {**JSON})


def _several(name: str, rng: Random, size: int) -> list[bytes]:
    """An image as often as fits, or once."""
    image = IMAGES[name](rng, min(size, MOST_IMAGE_BYTES))
    return [image] * min(MOST_IMAGES, max(1, MOST_IMAGE_BYTES // (len(image) + 1)), rng.choice((1, MOST_IMAGES)))


def _encoded(endpoint: Endpoint, name: str, rng: Random, size: int) -> Body:
    texts = [base64.b64encode(each).decode() for each in _several(name, rng, size)]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    asked = {
        "predict": {"instances": [{"b64": text} for text in texts]},
        "classify": {"examples": [{"image": {"b64": text}} for text in texts]},
    }.get(endpoint.path.rpartition(":")[2])
    return Body(json.dumps(asked or {"inputs": [tensor]}).encode(), {**JSON})


def _binary(content: bytes, shape: list[int], blanks: bytes = b"", **more: str) -> Body:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape, "parameters": parameters, **more}
    head = json.dumps({"inputs": [tensor]}).encode() + blanks
    return Body(head + content, {BINARY: str(len(head))})


def _pixels(rng: Random, size: int) -> Body:
    rows = size // 3072
    return _binary(bytes(3072 * rows), [rows, 32, 32, 3], name="pixels", datatype="UINT8")


def _raw(name: str, rng: Random, size: int) -> Body:
    images = _several(name, rng, size)
    return _binary(b"".join(struct.pack("<I", len(image)) + image for image in images), [len(images)])


def _image(name: str, rng: Random, size: int) -> Body:
    return Body(IMAGES[name](rng, size), {"Content-Type": "image/jpeg"})


def _form(make: Callable[[int], bytes], rng: Random, size: int) -> Body:
    return Body(make(size), {"Content-Type": "multipart/form-data; boundary=b"})


def _images(name: str, rng: Random, size: int) -> Body:
    return _form(lambda _: form([part(b"image", image) for image in _several(name, rng, size)]), rng, size)

"""The fuzzer for HTTP: requests made from a server's OpenAPI document, and others that no client would write."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from lab.faults.fuzz.images import IMAGES, LARGE, Make, photograph
from lab.faults.fuzz.inputs import CASES, Input, damaged, stretched, zeros

MIB = 2**20
# The most bytes of a request: the server's limit, less what a head takes.
MOST_BYTES = 32 * MIB - 2**16
# HAProxy takes heads of about as much.
HEAD_BYTES = 12_000
MOST_PIECES = 2000
# An image may come as often as this, in about as many bytes together.
MOST_IMAGES, MOST_IMAGE_BYTES = 64, 23 * MIB
JSON, FORM = b"Content-Type: application/json", b"Content-Type: multipart/form-data; boundary=b"
# Stands where a value will; a schema's own values never hold it.
PLACE = "\u2063"
# In place of a name in a path, so that no member is unloaded.
NOBODY = "nobody"
# What a reader that is fooled takes for the beginning of the next request, which is another client's.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX: "
# Paths that the document leaves out, each with the listed one that it is another name of, if it is.
UNLISTED = {
    **{
        f"/v2/models/{model}{rest}": f"/v2/models/ensemble{rest}"
        for model in ("ensemble/versions/1", "resnet", "resnet/versions/1")
        for rest in ("", "/ready", "/config", "/stats", "/infer")
    },
    **{
        f"/v1/models/ensemble/versions/{version}{rest}": f"/v1/models/ensemble{rest}"
        for version in "01"
        for rest in ("", "/metadata", ":predict", ":classify")
    },
    **dict.fromkeys(("/", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/-/healthz", "/-/routes"), ""),
    "/nothing": "",
}


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


@dataclass(frozen=True)
class Endpoint:
    """A route.

    Attributes:
        method: of HTTP.
        path: names filled in.
        schema: of the JSON body, if one is taken.
        schemas: what `schema` refers to, by name.
        takes_images: whether a body may be an image or a form.
    """

    method: str
    path: str
    schema: Mapping[str, Any] | None
    schemas: Mapping[str, Any]
    takes_images: bool


class HttpFuzzer:
    """Makes inputs for every route of an OpenAPI document, and for those that it leaves out.

    Attributes:
        routes: by method and path.
        kinds: by method and path, what can be made for the route.
        endpoints: the methods and paths.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the document."""
        self.routes = {f"{each.method} {path}": each for path, each in routes(document).items()}
        self.kinds = {where: kinds(each) for where, each in self.routes.items()}
        self.endpoints = list(self.kinds)

    def made(self, where: str, what: str, key: str, rng: Random, size: int) -> Input:
        """Make an input of a kind."""
        endpoint, draft = self.routes[where], self.kinds[where][what](rng, size)
        if draft.raw:
            return Input(where, what, draft.raw, whole=False)
        documented = draft.whole and not what.startswith(("heads", "HTTP"))
        if draft.body and draft.length is None:
            what = _packed(draft, what, rng)
            what = _in_chunks(draft, what, rng)
        pieces = rng.randrange(2, MOST_PIECES) if rng.random() < 0.05 else 1
        what += f", in {pieces} pieces" if pieces > 1 else ""
        content = _written(endpoint, draft, key)
        shown = bool(key)
        return Input(where, what, content, "http", shown, (), "", draft.whole, documented, draft.due, pieces)


def routes(document: Mapping[str, Any]) -> dict[str, Endpoint]:
    """Return the routes of an OpenAPI document, and those that it leaves out, by path."""
    schemas = document["components"]["schemas"]
    listed = {path: next(iter(operations.items())) for path, operations in document["paths"].items()}
    others = {path: listed.get(same, ("get", {})) for path, same in UNLISTED.items() if path not in listed}
    return {path: _route(path, each[0], each[1], schemas) for path, each in (listed | others).items()}


def _route(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Endpoint:
    content = operation.get("requestBody", {}).get("content", {})
    for parameter in operation.get("parameters", ()):
        path = path.replace("{" + parameter["name"] + "}", NOBODY)
    schema = content.get("application/json", {}).get("schema")
    return Endpoint(method.upper(), path, schema, schemas, "image/*" in content)


def _written(endpoint: Endpoint, draft: Draft, key: str) -> bytes:
    start = draft.start or b"%b %b%b HTTP/1.1" % (endpoint.method.encode(), endpoint.path.encode(), draft.query)
    lines = [start, b"Host: localhost", b"Connection: " + draft.connection]
    if key:
        lines.append(b"Authorization: Bearer " + key.encode())
    length = b"Content-Length: %d" % len(draft.body) if draft.length is None else draft.length
    return b"\r\n".join([*lines, *draft.lines, length]) + b"\r\n\r\n" + draft.body


def _packed(draft: Draft, what: str, rng: Random) -> str:
    """Compress a body now and then; returns what the input is now."""
    if any(b"Content-Encoding" in line for line in draft.lines) or rng.random() < 0.8:
        return what
    encoding, wbits = rng.choice((("gzip", 31), ("deflate", 15)))
    packer = zlib.compressobj(rng.choice((1, 9)) if len(draft.body) < MIB else 1, wbits=wbits)
    draft.body = packer.compress(draft.body) + packer.flush()
    draft.lines.append(f"Content-Encoding: {encoding}".encode())
    return f"{what}, by {encoding}"


def _in_chunks(draft: Draft, what: str, rng: Random) -> str:
    """Send a body in chunks of a byte now and then, of six bytes on the wire each; returns what the input is now."""
    if len(draft.body) > MOST_BYTES // 6 or rng.random() < 0.95:
        draft.body = draft.body[: MOST_BYTES + 2**15]
        return what
    draft.body = b"".join(b"1\r\n%c\r\n" % byte for byte in draft.body) + b"0\r\n\r\n"
    draft.length = b"Transfer-Encoding: chunked"
    return f"{what}, in chunks of a byte"


def kinds(endpoint: Endpoint) -> dict[str, Kind]:
    """Return what can be sent to a route, by what is hostile or large about it."""
    made: dict[str, Kind] = {
        "bodies: nothing": lambda rng, size: Draft(),
        "bodies: zeros": lambda rng, size: Draft(bytes(size)),
        "bodies: a bomb of zeros": _zeros,
        "bodies: compressed empty blocks": _blocks,
    }
    made |= {f"heads: {name}": partial(_long_header, name) for name in CASES["long_headers"]}
    made |= {f"heads: {name}": partial(_long_query, name) for name in CASES["long_queries"]}
    if endpoint.schema is not None:
        made |= {f"JSON: {name}": partial(_long_value, endpoint, name) for name in CASES["long_json"]}
        made["JSON: a wrong value"] = partial(_wrong_value, endpoint)
        made["JSON: damaged"] = partial(_damaged_json, endpoint)
        made["JSON: odd text"] = partial(_odd_text, endpoint)
    if endpoint.path.endswith(("/infer", ":predict", ":classify")) and endpoint.path not in UNLISTED:
        made |= {f"{name}, in JSON": partial(_in_json, endpoint, make) for name, make in ALL_IMAGES.items()}
    if endpoint.path == "/feedback":
        made["JSON: many labels, a line each"] = _labels
    if endpoint.path.endswith("/infer"):
        made["binary tensors: empty elements"] = lambda rng, size: _binary(bytes(size // 4 * 4), [size // 4])
        made["binary tensors: a long header"] = lambda rng, size: _binary(b"", [0], b" " * size)
        made["binary tensors: pixels"] = _pixels
    if endpoint.path == "/v2/models/ensemble/infer":
        made |= {f"{name}, in a binary tensor": partial(_raw, make) for name, make in ALL_IMAGES.items()}
    if endpoint.takes_images:
        made |= {name: partial(_image, make) for name, make in ALL_IMAGES.items()}
        made |= {f"{name}, in a form": partial(_in_form, make) for name, make in ALL_IMAGES.items()}
        made |= {f"forms: {name}": partial(_long_form, name) for name in CASES["long_forms"]}
        made |= FORMS | WIRES
    return made


ALL_IMAGES = IMAGES | LARGE


def _long_header(name: str, rng: Random, size: int) -> Draft:
    return Draft(lines=[stretched(min(size, HEAD_BYTES), **CASES["long_headers"][name])])


def _long_query(name: str, rng: Random, size: int) -> Draft:
    return Draft(query=stretched(min(size, HEAD_BYTES), **CASES["long_queries"][name]))


def _zeros(rng: Random, size: int) -> Draft:
    """Return as many compressed zeros as a thousand times the size."""
    encoding, wbits = rng.choice(((b"gzip", 31), (b"deflate", 15)))
    content = zeros(max(2, min(size, 8 * MIB) // 1000) * MIB, wbits)
    return Draft(content, [b"Content-Encoding: " + encoding])


def _blocks(rng: Random, size: int) -> Draft:
    """Return a stream of zlib's that goes on and on and holds nothing: empty blocks, stored or of fixed codes."""
    block = rng.choice((b"\0\0\0\xff\xff", b"\x02\0\0\xff\xff"))
    return Draft(b"\x78\x9c" + block * (size // 5) + b"\x03\0\0\0\0\x01", [b"Content-Encoding: deflate"])


def example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return a value that a JSON schema allows, with every field."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            return example(schema[alternatives][0], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {}) or {"b64": {"type": "string"}, "version": {"type": "integer"}}
        return {name: example(each, schemas) for name, each in fields.items()}
    if kind == "array":
        return [example(schema.get("items") or {"type": "object"}, schemas)]
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(kind), "image")


def valid(endpoint: Endpoint, images: list[bytes]) -> Any:
    """Return a JSON body with images that the server answers; of another route, what its schema allows."""
    texts = [base64.b64encode(each).decode() for each in images]
    if endpoint.path.endswith("/infer"):
        tensor = {"name": "image", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return {"id": "7", "inputs": [tensor], "parameters": {"top_k": 1}, "outputs": [{"name": "label"}]}
    if endpoint.path.endswith(":predict"):
        return {"instances": [{"b64": text} for text in texts]}
    if endpoint.path.endswith(":classify"):
        return {"examples": [{"image": {"b64": text}} for text in texts]}
    return example(endpoint.schema or {}, endpoint.schemas)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document: what holds it, and its name or position there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)


def _with(endpoint: Endpoint, text: bytes, rng: Random) -> Draft:
    """Return a request in one place of which this text stands; the place may be the whole."""
    whole = rng.choice((valid(endpoint, [photograph()]), example(endpoint.schema or {}, endpoint.schemas)))
    places = list(_places(whole))
    if not places or rng.random() < 0.1:
        return Draft(text, [JSON])
    holder, key = rng.choice(places)
    holder[key] = PLACE
    return Draft(json.dumps(whole).encode().replace(json.dumps(PLACE).encode(), text), [JSON])


def _long_value(endpoint: Endpoint, name: str, rng: Random, size: int) -> Draft:
    return _with(endpoint, stretched(size, **CASES["long_json"][name]), rng)


def _wrong_value(endpoint: Endpoint, rng: Random, size: int) -> Draft:
    return _with(endpoint, rng.choice(CASES["values"]), rng)


def _damaged_json(endpoint: Endpoint, rng: Random, size: int) -> Draft:
    return Draft(damaged(json.dumps(valid(endpoint, [photograph()])).encode(), rng), [JSON])


def _odd_text(endpoint: Endpoint, rng: Random, size: int) -> Draft:
    text = json.dumps(valid(endpoint, [photograph()]))
    body = rng.choice(
        (
            b"\xef\xbb\xbf" + text.encode(),
            text.encode("utf-16"),
            text.encode("utf-32"),
            text.replace("image", "im\udcffage").encode("utf-8", "surrogateescape"),
            text.replace('"image"', '"\\udfff"').encode(),
            text.replace('"id"', '"inputs"').encode(),
            b"\0" + text.encode(),
        )
    )
    return Draft(body, [rng.choice((JSON, JSON + b"; charset=utf-16", b"Content-Type: text/json"))])


def _labels(rng: Random, size: int) -> Draft:
    line = rng.choice((b'{"request_id":"a","label":0}\n', b"{}\n", b"\n"))
    return Draft(line * (min(size, MIB) // len(line)), [b"Content-Type: application/x-ndjson"])


# Images.
def _several(make: Make, rng: Random, size: int) -> list[bytes]:
    """Return an image once, or as often as fits."""
    image = make(rng, min(size, MOST_IMAGE_BYTES))
    fits = max(1, min(size, MOST_IMAGE_BYTES) // (len(image) + 1))
    return [image] * min(fits, rng.choice((1, MOST_IMAGES)))


def _image(make: Make, rng: Random, size: int) -> Draft:
    declared = rng.choice((b"image/jpeg", b"image/png", b"application/octet-stream"))
    return Draft(make(rng, size), [b"Content-Type: " + declared])


def _in_json(endpoint: Endpoint, make: Make, rng: Random, size: int) -> Draft:
    return Draft(json.dumps(valid(endpoint, _several(make, rng, size))).encode(), [JSON])


def _binary(content: bytes, shape: list[int], blanks: bytes = b"", **more: str) -> Draft:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape, "parameters": parameters, **more}
    head = json.dumps({"inputs": [tensor]}).encode() + blanks
    return Draft(head + content, [b"Inference-Header-Content-Length: %d" % len(head)])


def _pixels(rng: Random, size: int) -> Draft:
    rows = size // 3072
    return _binary(bytes(3072 * rows), [rows, 32, 32, 3], name="pixels", datatype="UINT8")


def _raw(make: Make, rng: Random, size: int) -> Draft:
    images = _several(make, rng, size)
    return _binary(b"".join(struct.pack("<I", len(image)) + image for image in images), [len(images)])


# Forms.
def part(
    content: bytes, head: bytes = b'\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
) -> bytes:
    """Return a part without its boundary."""
    return head + content + b"\r\n"


def form(*parts: bytes, boundary: bytes = b"b") -> bytes:
    """Return a form of parts."""
    return b"".join(b"--" + boundary + each for each in parts) + b"--" + boundary + b"--\r\n"


def _in_form(make: Make, rng: Random, size: int) -> Draft:
    return Draft(form(*map(part, _several(make, rng, size)), boundary=b"b" * 60), [FORM + b"b" * 59])


def _long_form(name: str, rng: Random, size: int) -> Draft:
    return Draft(stretched(size, **CASES["long_forms"][name]), [FORM])


def _damaged_form(rng: Random, size: int) -> Draft:
    return Draft(damaged(form(*[part(photograph())] * rng.randrange(1, 4)), rng), [FORM])


def _odd_parts(rng: Random, size: int) -> Draft:
    heads = [rng.choice(CASES["form_heads"]) for _ in range(rng.randrange(1, 4))]
    return Draft(form(*(part(photograph(), head) for head in heads)), [FORM])


def _false_length(rng: Random, size: int) -> Draft:
    body = form(part(photograph()))
    return Draft(
        body, [FORM], length=b"Content-Length: %d" % (len(body) + rng.choice((-20, -1, 1, 5_000))), whole=False
    )


def _content_type(rng: Random, size: int) -> Draft:
    body = rng.choice((b"x=y", form(part(photograph())), form(part(photograph()), boundary=b"other")))
    return Draft(body, [b"Content-Type: " + rng.choice(CASES["content_types"])])


FORMS: dict[str, Kind] = {
    "forms: damaged": _damaged_form,
    "forms: odd heads of parts": _odd_parts,
    "forms: longer or shorter than declared": _false_length,
    "forms: odd content types": _content_type,
}


# What stands on the wire.
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

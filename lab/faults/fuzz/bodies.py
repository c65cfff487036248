"""What can be sent to a route over HTTP, by what is hostile or large about it."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from lab.faults.fuzz.images import IMAGES, LARGE, Make, photograph
from lab.faults.fuzz.inputs import CASES, MIB, damaged, several, stretched, zeros
from lab.faults.fuzz.wires import HEAD_BYTES, WIRES, Draft, Kind

JSON, FORM = b"Content-Type: application/json", b"Content-Type: multipart/form-data; boundary=b"
# Stands where a value will; a schema's own values never hold it.
PLACE = "\u2063"
# JSON with images; another name of a path is not asked with all of them again.
TAKE_IMAGES = ("/infer", ":predict", ":classify", "/predictions")
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
        made["JSON: odd content types"] = partial(_odd_type, endpoint)
    if endpoint.path.endswith(TAKE_IMAGES) and endpoint.path not in UNLISTED:
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
    if endpoint.path.endswith("/predictions"):
        return {"binData": texts[0]}
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


def _odd_type(endpoint: Endpoint, rng: Random, size: int) -> Draft:
    body = json.dumps(valid(endpoint, [photograph()])).encode()
    return Draft(body, [b"Content-Type: " + rng.choice(CASES["content_types"])])


def _labels(rng: Random, size: int) -> Draft:
    line = rng.choice((b'{"request_id":"a","label":0}\n', b"{}\n", b"\n"))
    return Draft(line * (min(size, MIB) // len(line)), [b"Content-Type: application/x-ndjson"])


def _image(make: Make, rng: Random, size: int) -> Draft:
    declared = rng.choice((b"image/jpeg", b"image/png", b"application/octet-stream"))
    return Draft(make(rng, size), [b"Content-Type: " + declared])


def _in_json(endpoint: Endpoint, make: Make, rng: Random, size: int) -> Draft:
    return Draft(json.dumps(valid(endpoint, several(make, rng, size))).encode(), [JSON])


def _binary(content: bytes, shape: list[int], blanks: bytes = b"", **more: str) -> Draft:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape, "parameters": parameters, **more}
    head = json.dumps({"inputs": [tensor]}).encode() + blanks
    return Draft(head + content, [b"Inference-Header-Content-Length: %d" % len(head)])


def _pixels(rng: Random, size: int) -> Draft:
    rows = size // 3072
    return _binary(bytes(3072 * rows), [rows, 32, 32, 3], name="pixels", datatype="UINT8")


def _raw(make: Make, rng: Random, size: int) -> Draft:
    images = several(make, rng, size)
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
    return Draft(form(*map(part, several(make, rng, size)), boundary=b"b" * 60), [FORM + b"b" * 59])


def _long_form(name: str, rng: Random, size: int) -> Draft:
    return Draft(stretched(size, **CASES["long_forms"][name]), [FORM])


def _odd_parts(rng: Random) -> bytes:
    heads = [rng.choice(CASES["form_heads"]) for _ in range(rng.randrange(1, 4))]
    return form(*(part(photograph(), head) for head in heads))


def _false_length(rng: Random, size: int) -> Draft:
    body = form(part(photograph()))
    length = b"Content-Length: %d" % (len(body) + rng.choice((-20, -1, 1, 5_000)))
    return Draft(body, [FORM], length=length, whole=False)


def _content_type(rng: Random, size: int) -> Draft:
    body = rng.choice((b"x=y", form(part(photograph())), form(part(photograph()), boundary=b"other")))
    return Draft(body, [b"Content-Type: " + rng.choice(CASES["content_types"])])


FORMS: dict[str, Kind] = {
    "forms: damaged": lambda rng, size: Draft(damaged(form(*[part(photograph())] * rng.randrange(1, 4)), rng), [FORM]),
    "forms: many parts": lambda rng, size: Draft(form(*[part(b"")] * rng.choice((63, 65, 1000, 20_000))), [FORM]),
    "forms: odd heads of parts": lambda rng, size: Draft(_odd_parts(rng), [FORM]),
    "forms: longer or shorter than declared": _false_length,
    "forms: odd content types": _content_type,
}

"""Hostile requests: HTTP bodies and heads that cost much, bytes that no client would write, and gRPC messages.

A family of inputs is a function that makes one for an endpoint, by a random source and about a size in bytes.
Schemathesis makes up requests that follow the OpenAPI document or break it, in tests/server/shared.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.json_format import Parse
from google.protobuf.message_factory import GetMessageClass

from deployments.ingress.protocol import services
from lab.benchmark import peer
from lab.faults.fuzz.corpus import AWKWARD, CASES, MIB, damaged, long_case, zeros
from lab.faults.fuzz.images import HOSTILE, photograph

# The most bytes of a request: the server's limit, less the bytes of a head.
MOST_BYTES = 32 * MIB - 2**16
# The most images of a request, and the most bytes that all of them have together.
MOST_IMAGES, MOST_IMAGE_BYTES = 64, 23 * MIB
JSON, FORM = b"Content-Type: application/json", b"Content-Type: multipart/form-data; boundary=b"
CLASSIFY = "POST /classify"
PART = b'\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
HOST = b"Host: localhost\r\n"
PACKINGS = {b"gzip": 31, b"deflate": 15}
# HAProxy takes heads of about so many bytes.
HEAD_BYTES = 12_000
# In place of a name in a path, so that no member is unloaded.
NOBODY, NAME = "nobody", re.compile(r"\{\w+\}")
# A text or a number of JSON, which another value replaces.
VALUE = re.compile(rb'"[^"]*"|\d+')
# Of protobuf: kinds of fields, the number of a field that no message has, and how deep messages are looked through.
VARINT, FIXED64, OPEN, CLOSE = 0, 1, 3, 4
UNKNOWN, DEPTH = 1000, 4


@dataclass(frozen=True)
class Input:
    """One input: the route, as `POST /classify`, or the gRPC method that receives it, and its hostile or large part."""

    where: str
    kind: str
    # All bytes of an HTTP connection, or a gRPC message, without protobuf's checks.
    content: bytes
    # Whether the request is complete, so that an answer is due. The client ends an incomplete one by closing.
    whole: bool = True
    # Whether gRPC compresses the message.
    packed: bool = False
    family: str = ""
    # That it shows; empty for none.
    key: str = ""

    @property
    def is_grpc(self) -> bool:
        """Whether the content is a gRPC message."""
        return self.where.startswith("/")

    @property
    def size(self) -> int:
        """Bytes on the wire, without the frames of HTTP/2."""
        return len(zlib.compress(self.content)) if self.packed else len(self.content)

    def keyed(self, key: str) -> Input:
        """Return the input with a key, where its head has a place for it."""
        if self.is_grpc:
            return replace(self, key=key)
        if not key or HOST not in self.content:
            return self
        own = HOST + b"Authorization: Bearer %b\r\n" % key.encode()
        return replace(self, key=key, content=self.content.replace(HOST, own, 1))


# A body or message that carries images, the line of a head that it needs, and how it carries them.
Carried = tuple[str, bytes, bytes]


@dataclass(frozen=True)
class Endpoint:
    """A route, as `POST /classify`, or a gRPC method with its message; its ways to take images, and its JSON."""

    where: str
    message: Descriptor | None = None
    carriers: Sequence[Callable[[Sequence[bytes]], Carried]] = ()
    documents: Sequence[Mapping[str, bytes]] = ()

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC method."""
        return self.message is not None

    def request(self, rng: Random, kind: str, body: bytes = b"", line: bytes = b"", query: bytes = b"") -> Input:
        """Write a request, compressed or in chunks of a byte now and then; `line` is of its head."""
        if self.is_grpc:
            return Input(self.where, kind, body, packed=rng.random() < 0.1)
        head = line + b"\r\n" if line else b""
        if rng.random() < 0.2 and b"Content-Encoding" not in head:
            packing = rng.choice(list(PACKINGS))
            packer = zlib.compressobj(rng.choice((1, 9)) if len(body) < MIB else 1, wbits=PACKINGS[packing])
            body = packer.compress(body) + packer.flush()
            head += b"Content-Encoding: %b\r\n" % packing
        body = body[: MOST_BYTES + 2**15]
        # A byte is six on the wire.
        if rng.random() < 0.05 and len(body) <= MOST_BYTES // 6:
            head += b"Transfer-Encoding: chunked\r\n"
            body = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
        else:
            head += b"Content-Length: %d\r\n" % len(body)
        method, _, path = self.where.partition(" ")
        first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), path.encode(), query)
        return Input(self.where, kind, first + HOST + b"Connection: close\r\n" + head + b"\r\n" + body)

    def carry(self, rng: Random, images: Sequence[bytes]) -> Carried:
        """Carry images in one of the endpoint's ways; nothing where it takes none."""
        return rng.choice(self.carriers)(images) if self.carriers else ("without images", b"", b"")


def endpoints(document: Mapping[str, Any]) -> Iterator[Endpoint]:
    """Yield the routes of an OpenAPI document, routes that the document leaves out, and every gRPC method."""
    listed = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    for where in (NAME.sub(NOBODY, each) for each in (*listed, *(each.decode() for each in CASES["unlisted"]))):
        is_post = where.startswith("POST ")
        documents = [body for end, body in CASES["documents"].items() if where.endswith(end) and is_post]
        carriers: list[Callable[[Sequence[bytes]], Carried]]
        carriers = [partial(_in_json, body) for body in documents if "each" in body]
        carriers += [_alone, form] if where == CLASSIFY else []
        carriers += [_in_a_tensor] if where.endswith("/infer") else []
        yield Endpoint(where, None, carriers, documents)
    for service in services(None):
        for method in service.methods:
            message = method.input_type
            templates = CASES["messages"].get(message.name, ())
            ways = [partial(_in_a_message, message, template) for template in templates]
            yield Endpoint(f"/{service.full_name}/{method.name}", message, ways)


def _alone(images: Sequence[bytes]) -> Carried:
    return "as it is", images[0], b"Content-Type: image/jpeg"


def form(images: Sequence[bytes], head: bytes = PART) -> Carried:
    """Return a form with a part for each image."""
    return "in a form", b"".join(b"--b%b%b\r\n" % (head, each) for each in images) + b"--b--\r\n", FORM


def _in_a_tensor(images: Sequence[bytes]) -> Carried:
    content = _tensor(images)
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(images)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return "in a tensor", head + content, b"Inference-Header-Content-Length: %d" % len(head)


def _tensor(images: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in images)


def _in_json(template: Mapping[str, bytes], images: Sequence[bytes]) -> Carried:
    return "in JSON", filled(template, images), JSON


def _in_a_message(message: Descriptor, template: Mapping[str, bytes], images: Sequence[bytes]) -> Carried:
    return "in a message", Parse(filled(template, images), GetMessageClass(message)()).SerializeToString(), b""


def filled(template: Mapping[str, bytes], images: Sequence[bytes]) -> bytes:
    """Return the JSON of a template of the corpus, with images that the server answers."""
    images = images[:1] if "single" in template else images
    each = b",".join(template.get("each", b"").replace(b"@", base64.b64encode(image)) for image in images)
    text = template["text"].replace(b"#", b"%d" % len(images)).replace(b"@", each)
    return text.replace(b"~", base64.b64encode(_tensor(images))) if b"~" in template["text"] else text


def _image(family: str, at: Endpoint, rng: Random, size: int) -> Input:
    """Carry a hostile image once, or as often as it fits into a request."""
    kind, image = HOSTILE[family](rng, size)
    most = max(1, min(MOST_IMAGES, MOST_IMAGE_BYTES // (len(image) + 1)))
    way, body, line = at.carry(rng, [image] * rng.choice((1, most)))
    return at.request(rng, f"{kind}, {way}", body, line)


def _body(at: Endpoint, rng: Random, size: int) -> Input:
    """Send a body that is unusual for the route."""
    kind = rng.choice(("nothing", "damaged", "a bomb of zeros", "long"))
    if kind == "damaged":
        way, body, line = at.carry(rng, [photograph()] * 2)
        return at.request(rng, f"{kind}, {way}", damaged(body, rng), line)
    if kind == "a bomb of zeros":
        # A thousand times the size.
        megabytes, packing = max(2, min(size, 8 * MIB) // 1000), rng.choice(list(PACKINGS))
        return at.request(rng, kind, zeros(megabytes * MIB, PACKINGS[packing]), b"Content-Encoding: %b" % packing)
    if kind == "long":
        return at.request(rng, *long_case(rng, "long_bodies", size), b"Content-Encoding: deflate")
    return at.request(rng, kind)


def _head(at: Endpoint, rng: Random, size: int) -> Input:
    """Send a long line of a head, or a long query."""
    group, place = rng.choice((("long_headers", "line"), ("long_queries", "query")))
    kind, text = long_case(rng, group, min(size, HEAD_BYTES))
    return at.request(rng, kind, **{place: text})


def _json(at: Endpoint, rng: Random, size: int) -> Input:
    """Send a long or deep JSON, alone or in place of a value of the route's JSON; or that JSON, damaged."""
    kind, text = long_case(rng, "long_json", size)
    if not at.documents or rng.random() < 0.4:
        return at.request(rng, kind, text, JSON)
    usual = filled(rng.choice(at.documents), [photograph()])
    if rng.random() < 0.1:
        return at.request(rng, "damaged", damaged(usual, rng), JSON)
    place = rng.choice(list(VALUE.finditer(usual)))
    return at.request(rng, f"{kind}, in a document", usual[: place.start()] + text + usual[place.end() :], JSON)


def _form(at: Endpoint, rng: Random, size: int) -> Input:
    """Send a form of very many parts, with an odd part, or damaged."""
    _, odd, _ = form([photograph()], rng.choice(CASES["form_heads"]))
    _, usual, _ = form([photograph()] * 2)
    choices = (long_case(rng, "long_forms", size), ("odd heads", odd), ("damaged", damaged(usual, rng)))
    return at.request(rng, *rng.choices(choices, (70, 15, 15))[0], FORM)


def _wire(at: Endpoint, rng: Random, _: int) -> Input:
    """Send wrong HTTP, or a request that two readers would cut apart at different places."""
    kind, wire = rng.choice(list(CASES["wires"].items()))
    content = wire["request"].replace(b"@", rng.choice(CASES[wire["cases"].decode()]))
    return Input(at.where, kind, content, whole="whole" not in wire)


def _message(at: Endpoint, rng: Random, size: int) -> Input:
    """Send a message that is none of the method's."""
    _, usual, _ = at.carry(rng, [photograph()])
    opening, closing = (peer.varint(UNKNOWN << 3 | each) for each in (OPEN, CLOSE))
    choices = (
        ("zeros", bytes(size)),
        ("random bytes", rng.randbytes(rng.randrange(300))),
        ("deep groups", opening * (size // 4) + closing * (size // 4)),
        ("damaged", damaged(usual, rng)),
    )
    return at.request(rng, *rng.choice(choices))


def _fields(at: Endpoint, rng: Random, size: int) -> Input:
    """Send very many small fields behind a usual message, within one message or each in a message of its own."""
    _, usual, _ = at.carry(rng, [photograph()])
    names, numbers = _way(at.message, rng)
    unit = _unit(numbers[-1], rng)
    alone, together = unit, unit * max(1, size // len(unit))
    for outer in reversed(numbers[:-1]):
        alone, together = peer.field(outer, alone), peer.field(outer, together)
    repeated = rng.choice((together, alone * (size // len(alone))))
    return at.request(rng, ".".join(names), rng.choice((b"", usual)) + repeated)


def _way(message: Descriptor | None, rng: Random) -> tuple[list[str], list[int]]:
    """Draw a field of a message, or of messages within it: the names and numbers of the fields that lead there."""
    names, numbers = list[str](), list[int]()
    while message is not None and len(names) < DEPTH and (not names or rng.random() < 0.7):
        fields = {each.number: each for each in message.fields}
        number = rng.choice((*fields, UNKNOWN))
        names.append(fields[number].name if number in fields else "unknown")
        numbers.append(number)
        message = fields[number].message_type if number in fields else None
    return names, numbers


def _unit(number: int, rng: Random) -> bytes:
    """Draw a small field of a number: a text, an integer, or a floating-point number."""
    varints = [peer.varint(each) for each in (*AWKWARD, 2**63 - 1, 2**64 - 1)] + [b"\xff" * 9 + b"\1"]
    double = struct.pack("<d", rng.choice((0.0, float("nan"), float("inf"), -1e300)))
    return rng.choice(
        (
            peer.field(number, rng.choice((*CASES["strings"], b"\1" * 100))),
            peer.varint(number << 3 | VARINT) + rng.choice(varints),
            peer.varint(number << 3 | FIXED64) + double,
        )
    )


LARGE = "large images"
# By name: how often inputs of a family are sent, to which endpoints, and what makes one.
FAMILIES: dict[str, tuple[int, Callable[[Endpoint], bool], Callable[[Endpoint, Random, int], Input]]] = {
    "bodies": (3, lambda at: not at.is_grpc, _body),
    "heads": (3, lambda at: not at.is_grpc, _head),
    "JSON": (11, lambda at: not at.is_grpc, _json),
    "forms": (9, lambda at: at.where == CLASSIFY, _form),
    "HTTP": (13, lambda at: at.where == CLASSIFY, _wire),
    "gRPC messages": (3, lambda at: at.is_grpc, _message),
    "gRPC fields": (3, lambda at: at.is_grpc, _fields),
    "damaged images": (28, lambda at: bool(at.carriers), partial(_image, "damaged images")),
    "bombs": (10, lambda at: bool(at.carriers), partial(_image, "bombs")),
    "parts": (7, lambda at: bool(at.carriers), partial(_image, "parts")),
    LARGE: (1, lambda at: bool(at.carriers), partial(_image, LARGE)),
}

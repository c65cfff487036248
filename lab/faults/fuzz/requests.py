"""Hostile requests: HTTP bodies and heads that cost much, bytes that no client would write, and gRPC messages.

Schemathesis makes up requests that follow the OpenAPI document or break it, in tests/server/shared.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ensemble_seldon import seldon_pb2 as seldon
from ensemble_serving.protocol import inference_pb2 as inference
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as serving
from lab.benchmark.peer import field, varint
from lab.faults.fuzz.inputs import (
    AWKWARD,
    CASES,
    MIB,
    MOST_BYTES,
    RANDOMS,
    Input,
    damaged,
    hostile_images,
    long_cases,
    photograph,
    several,
    zeros,
)

JSON, FORM = b"Content-Type: application/json", b"Content-Type: multipart/form-data; boundary=b"
PART = b'\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
HOST = b"Host: localhost\r\n"
PACKINGS = {b"gzip": 31, b"deflate": 15}
# HAProxy takes heads of about so many bytes.
HEAD_BYTES = 12_000
# In place of a name in a path, so that no member is unloaded.
NOBODY, NAME = "nobody", re.compile(r"\{\w+\}")
# A text or a number of JSON, which another value replaces.
VALUE = re.compile(rb'"[^"]*"|\d+')


@dataclass(frozen=True)
class Draft:
    """A request: its body, a line of its head besides the usual ones, and its query; or all that is sent, `raw`."""

    body: bytes = b""
    line: bytes = b""
    query: bytes = b""
    raw: bytes = b""
    whole: bool = True


Drafts = dict[str, SearchStrategy[Draft]]


def routes(document: Mapping[str, Any]) -> list[str]:
    """Return the method and path of every route, also of routes that the OpenAPI document leaves out."""
    listed = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    return [NAME.sub(NOBODY, each) for each in (*listed, *(each.decode() for each in CASES["unlisted"]))]


def http_inputs(where: str, sizes: SearchStrategy[int], key: str) -> dict[str, SearchStrategy[Input]]:
    """Return the inputs for a route, by their hostile or large part; they show a key if it is not empty."""
    method, _, path = where.partition(" ")
    drafts = _bodies(sizes)
    if path == "/classify":
        drafts |= _forms(sizes) | _wires()
    elif path.endswith("/infer"):
        drafts |= _tensors(sizes)
    for end, template in CASES["documents"].items():
        if path.endswith(end) and method == "POST":
            drafts |= _documents(template, sizes)
    return {what: st.builds(partial(_request, where, what, key), each, RANDOMS) for what, each in drafts.items()}


def _request(where: str, what: str, key: str, draft: Draft, rng: Random) -> Input:
    own = HOST + b"Authorization: Bearer %b\r\n" % key.encode() if key else HOST
    if draft.raw:
        shown = key if HOST in draft.raw else ""
        return Input(where, what, draft.raw.replace(HOST, own, 1), shown, whole=draft.whole)
    head, body = _encoded(draft, rng)
    method, _, path = where.partition(" ")
    first = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), path.encode(), draft.query)
    return Input(where, what, first + own + b"Connection: close\r\n" + head + b"\r\n" + body, key)


def _encoded(draft: Draft, rng: Random) -> tuple[bytes, bytes]:
    """Return a request's lines and body, compressed or in chunks of a byte now and then."""
    head, body = draft.line + b"\r\n" if draft.line else b"", draft.body
    if rng.random() < 0.2 and b"Content-Encoding" not in head:
        packing = rng.choice(list(PACKINGS))
        packer = zlib.compressobj(rng.choice((1, 9)) if len(body) < MIB else 1, wbits=PACKINGS[packing])
        body = packer.compress(body) + packer.flush()
        head += b"Content-Encoding: %b\r\n" % packing
    body = body[: MOST_BYTES + 2**15]
    # A byte is six on the wire.
    if rng.random() < 0.05 and len(body) <= MOST_BYTES // 6:
        return head + b"Transfer-Encoding: chunked\r\n", b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n" % len(body), body


def _long(family: str, group: str, sizes: SearchStrategy[int], draft: Callable[[bytes], Draft]) -> Drafts:
    return {f"{family}: {name}": texts.map(draft) for name, texts in long_cases(group, sizes).items()}


def _bodies(sizes: SearchStrategy[int]) -> Drafts:
    """Return bodies and heads for every route."""

    def bomb(size: int, packing: bytes) -> Draft:
        """Compress as many zeros as a thousand times the size."""
        megabytes = max(2, min(size, 8 * MIB) // 1000)
        return Draft(zeros(megabytes * MIB, PACKINGS[packing]), b"Content-Encoding: %b" % packing)

    heads = sizes.map(lambda size: min(size, HEAD_BYTES))
    return {
        "bodies: nothing": st.just(Draft()),
        "bodies: a bomb of zeros": st.builds(bomb, sizes, st.sampled_from(list(PACKINGS))),
        **_long("bodies", "long_bodies", sizes, lambda body: Draft(body, b"Content-Encoding: deflate")),
        **_long("heads", "long_headers", heads, lambda line: Draft(line=line)),
        **_long("heads", "long_queries", heads, lambda query: Draft(query=query)),
        **_long("JSON", "long_json", sizes, lambda text: Draft(text, JSON)),
    }


def filled(template: Mapping[str, bytes], images: list[bytes]) -> bytes:
    """Return a JSON body with images that the server answers."""
    each = b",".join(template.get("each", b"").replace(b"@", base64.b64encode(image)) for image in images)
    return template["text"].replace(b"@", each).replace(b"#", b"%d" % len(images))


def _documents(template: Mapping[str, bytes], sizes: SearchStrategy[int]) -> Drafts:
    """Return JSON of a route: with a long value, damaged, and with hostile images."""
    usual = filled(template, [photograph()])
    places = st.sampled_from([each.span() for each in VALUE.finditer(usual)])

    def replaced(place: tuple[int, int], text: bytes) -> Draft:
        return Draft(usual[: place[0]] + text + usual[place[1] :], JSON)

    made: Drafts = {"JSON: damaged": RANDOMS.map(lambda rng: Draft(damaged(usual, rng), JSON))}
    for name, texts in long_cases("long_json", sizes).items():
        made[f"JSON: {name}, in a document"] = st.builds(replaced, places, texts)
    for name, images in hostile_images(sizes).items() if "each" in template else ():
        made[f"{name}, in JSON"] = several(images).map(lambda some: Draft(filled(template, some), JSON))
    return made


def _tensors(sizes: SearchStrategy[int]) -> Drafts:
    """Return images in binary tensors."""

    def joined(images: list[bytes]) -> Draft:
        content = b"".join(struct.pack("<I", len(image)) + image for image in images)
        parameters = {"binary_data_size": len(content)}
        tensor = {"name": "image", "datatype": "BYTES", "shape": [len(images)], "parameters": parameters}
        head = json.dumps({"inputs": [tensor]}).encode()
        return Draft(head + content, b"Inference-Header-Content-Length: %d" % len(head))

    return {f"{name}, in a tensor": several(images).map(joined) for name, images in hostile_images(sizes).items()}


def form(contents: Sequence[bytes], boundary: bytes = b"b", head: bytes = PART) -> bytes:
    """Return a form with a part for each content."""
    return b"".join(b"--%b%b%b\r\n" % (boundary, head, each) for each in contents) + b"--%b--\r\n" % boundary


def _forms(sizes: SearchStrategy[int]) -> Drafts:
    """Return images as they are, and forms."""
    usual, boundary = form([photograph()] * 2), b"b" * 60
    made: Drafts = {
        "forms: damaged": RANDOMS.map(lambda rng: Draft(damaged(usual, rng), FORM)),
        "forms: odd heads": st.sampled_from(CASES["form_heads"]).map(
            lambda head: Draft(form([photograph()], head=head), FORM)
        ),
        **_long("forms", "long_forms", sizes, lambda body: Draft(body, FORM)),
    }
    for name, images in hostile_images(sizes).items():
        made[name] = images.map(lambda image: Draft(image, b"Content-Type: image/jpeg"))
        made[f"{name}, in a form"] = several(images).map(lambda some: Draft(form(some, boundary), FORM + boundary[1:]))
    return made


def _wires() -> Drafts:
    """Return wrong HTTP, and requests that two readers would cut apart at different places."""
    made: Drafts = {}
    for name, wire in CASES["wires"].items():
        start, _, end = wire["request"].partition(b"@")
        cases = st.sampled_from([start + case + end for case in CASES[wire["cases"].decode()]])
        made[f"HTTP: {name}"] = st.builds(Draft, raw=cases, whole=st.just("whole" not in wire))
    return made


VARINT, FIXED64, _, OPEN, CLOSE = range(5)
# The number of a field that no message has; and how deep messages are looked through.
UNKNOWN, DEPTH = 1000, 4
# The numbers of the fields from a message to one within it.
Way = tuple[int, ...]


def units(number: int) -> list[bytes]:
    """Return small fields of a number, each of another kind or value."""
    numbers = [varint(each) for each in (*AWKWARD, 2**63 - 1, 2**64 - 1)] + [b"\xff" * 9 + b"\1"]
    doubles = [struct.pack("<d", each) for each in (0.0, float("nan"), float("inf"), -1e300)]
    return [
        *(field(number, text) for text in (*CASES["strings"], b"\1" * 100)),
        *(varint(number << 3 | VARINT) + each for each in numbers),
        *(varint(number << 3 | FIXED64) + each for each in doubles),
    ]


def fields(message: Descriptor, depth: int = DEPTH) -> dict[str, Way]:
    """Return the way to each field of a message and of the messages within it, by names."""
    found: dict[str, Way] = {each.name: (each.number,) for each in message.fields}
    for each in message.fields if depth > 1 else ():
        inner = fields(each.message_type, depth - 1) if each.message_type is not None else {}
        found |= {f"{each.name}.{name}": (each.number, *way) for name, way in inner.items()}
    return found


def wrapped(way: Way, content: bytes) -> bytes:
    """Put a field into the messages around it."""
    for outer in reversed(way[:-1]):
        content = field(outer, content)
    return content


def _infer(images: list[bytes], raw: bool) -> Message:
    contents = {} if raw else {"bytes_contents": images}
    return inference.ModelInferRequest(
        model_name="ensemble",
        inputs=[{"name": "image", "datatype": "BYTES", "shape": [len(images)], "contents": contents}],
        raw_input_contents=[b"".join(struct.pack("<I", len(each)) + each for each in images)] if raw else [],
    )


def _predict(images: list[bytes], _: bool) -> Message:
    tensor = serving.TensorProto(dtype="DT_STRING", tensor_shape={"dim": [{"size": len(images)}]}, string_val=images)
    return serving.PredictRequest(model_spec={"name": "ensemble"}, inputs={"image": tensor})


def _classify(images: list[bytes], _: bool) -> Message:
    examples = [{"features": {"feature": {"image": {"bytes_list": {"value": [each]}}}}} for each in images]
    return serving.ClassificationRequest(
        model_spec={"name": "ensemble"}, input={"example_list": {"examples": examples}}
    )


# Requests that a server answers, by their message, of images and whether these are raw contents.
Requested = Callable[[list[bytes], bool], Message]
REQUESTS: dict[str, Requested] = {
    "ModelInferRequest": _infer,
    "PredictRequest": _predict,
    "ClassificationRequest": _classify,
    "SeldonMessage": lambda images, _: seldon.SeldonMessage(binData=images[0]),
}


def messages(message: Descriptor, sizes: SearchStrategy[int]) -> dict[str, SearchStrategy[bytes]]:
    """Return the messages for a method, by their hostile or large part."""
    made_of: Requested = REQUESTS.get(message.name, lambda images, raw: GetMessageClass(message)())

    def request(images: list[bytes], raw: bool) -> bytes:
        return made_of(images, raw).SerializeToString()

    usual = [request([photograph()], raw) for raw in (False, True)]
    opening, closing = (varint(UNKNOWN << 3 | kind) for kind in (OPEN, CLOSE))

    def repeated(way: Way, begin: bytes, unit: bytes, size: int, together: bool) -> bytes:
        """Put small fields behind a usual message, within one message or each in a message of its own."""
        alone = wrapped(way, unit)
        return begin + (wrapped(way, unit * max(1, size // len(unit))) if together else alone * (size // len(alone)))

    made: dict[str, SearchStrategy[bytes]] = {
        "gRPC messages: zeros": sizes.map(bytes),
        "gRPC messages: random bytes": st.binary(max_size=300),
        "gRPC messages: damaged": st.builds(damaged, st.sampled_from(usual), RANDOMS),
        "gRPC messages: deep groups": sizes.map(lambda size: opening * (size // 4) + closing * (size // 4)),
    }
    for name, way in {**fields(message), "unknown": (UNKNOWN,)}.items():
        values = st.sampled_from(units(way[-1]))
        made[f"gRPC fields: {name}"] = st.builds(
            partial(repeated, way), st.sampled_from((b"", *usual)), values, sizes, st.booleans()
        )
    for name, images in hostile_images(sizes).items() if message.name in REQUESTS else ():
        made[name] = st.builds(request, several(images), st.booleans())
    return made


def grpc_inputs(path: str, asked: Descriptor, sizes: SearchStrategy[int], key: str) -> dict[str, SearchStrategy[Input]]:
    """Return the inputs for a method, by their hostile or large part; they show a key if it is not empty."""
    packed = st.sampled_from((*[False] * 9, True))
    return {
        what: st.builds(partial(Input, path, what, key=key, is_grpc=True), contents, packed=packed)
        for what, contents in messages(asked, sizes).items()
    }

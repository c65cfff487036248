"""The fuzzer for gRPC: messages made of the descriptors of all methods, and frames that no library writes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from deployments.ingress.protocol import services
from ensemble_seldon import seldon_pb2 as seldon
from ensemble_serving.protocol import inference_pb2 as inference
from ensemble_serving.transports.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_RECEIVED,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
)
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as serving
from lab.faults.fuzz.images import IMAGES, photograph
from lab.faults.fuzz.inputs import AWKWARD, CASES, Input, Make, damaged, mutated, several, zeros

# The fields from a message to one within it, by their numbers.
Way = tuple[int, ...]
VARINT, FIXED64, BYTES, OPEN, CLOSE = range(5)
# The number of a field that no message has.
UNKNOWN = 1000
BOMB_BYTES = 256 * 1024 * 1024


class GrpcFuzzer:
    """Makes inputs for every method of every service.

    Attributes:
        kinds: by method, what can be made for it.
    """

    def __init__(self) -> None:
        """List every method and kind."""
        methods = {f"/{one.full_name}/{method.name}": method for one in services(None) for method in one.methods}
        self.kinds = {path: kinds(method.input_type) for path, method in methods.items()}

    def made(self, where: str, what: str, key: str, rng: Random, size: int) -> Input:
        """Make an input of a kind."""
        content = self.kinds[where][what](rng, size)
        if what.startswith("HTTP/2 frames"):
            return Input(where, what, content, "http2", whole=False)
        metadata: list[tuple[str, str | bytes]] = [("authorization", f"Bearer {key}")] if key else []
        if what == "gRPC calls: odd metadata":
            name, _, value = rng.choice(CASES["metadata"]).partition(b" ")
            metadata.append((name.decode(), value if name.endswith(b"-bin") else value.decode("latin-1")))
        method = rng.choice(CASES["grpc_methods"]).decode() if what == "gRPC calls: another method" else where
        packing: Any = rng.choice(("gzip", "deflate")) if rng.random() < 0.1 else ""
        return Input(method, what, content, "grpc", bool(key), tuple(metadata), packing)


def kinds(message: Descriptor) -> dict[str, Make]:
    """Return what can be sent to a method, by what is hostile or large about it."""
    request = REQUESTS.get(message.name, lambda images, raw: GetMessageClass(message)())
    made: dict[str, Make] = {
        "gRPC messages: nothing": lambda rng, size: b"",
        "gRPC messages: zeros": lambda rng, size: bytes(size),
        "gRPC messages: random bytes": lambda rng, size: rng.randbytes(rng.randrange(300)),
        "gRPC messages: deep groups": _groups,
        "gRPC messages: wrong values": partial(_spoiled, request, _ways(message)),
        "gRPC calls: odd metadata": partial(_whole, request),
        "gRPC fields: unknown": partial(_large, (UNKNOWN,)),
    }
    made |= {f"gRPC fields: {name}": partial(_large, way) for name, way in _ways(message).items()}
    if message.name in REQUESTS:
        made["gRPC messages: damaged"] = lambda rng, size: damaged(_whole(request, rng, size), rng)
        made |= {name: partial(_images, request, make) for name, make in IMAGES.items()}
    if message.name == "ModelInferRequest":
        made["gRPC messages: raw contents with false lengths"] = _false_lengths
        made["gRPC calls: another method"] = lambda rng, size: rng.randbytes(rng.randrange(20))
        made["HTTP/2 frames: a false length of the message"] = _false_prefix
        made["HTTP/2 frames: decompression bomb"] = _bomb
        made["HTTP/2 frames: wrong"] = _wrong
    return made


# Messages, on the wire.
def varint(number: int) -> bytes:
    """Encode a number as protobuf does."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    """Encode a field with a length: a text, a message, or packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def _units(number: int) -> list[bytes]:
    """Return a field in each of the ways of the wire, as small as it can be; or packed, with a hundred numbers."""
    zero, eight = varint(number << 3 | VARINT) + b"\0", varint(number << 3 | FIXED64) + bytes(8)
    return [field(number, b""), zero, zero[:-1] + b"\xff" * 9 + b"\1", eight, field(number, b"\1" * 100)]


def _ways(message: Descriptor, depth: int = 4) -> dict[str, Way]:
    """Return the way to each field of a message and of the messages within it, by their names."""
    found: dict[str, Way] = {}
    for each in message.fields:
        found[each.name] = (each.number,)
        if each.message_type is not None and depth > 1:
            inner = _ways(each.message_type, depth - 1)
            found |= {f"{each.name}.{name}": (each.number, *way) for name, way in inner.items()}
    return found


def _wrapped(way: Way, content: bytes) -> bytes:
    for outer in reversed(way[:-1]):
        content = field(outer, content)
    return content


def _large(way: Way, rng: Random, size: int) -> bytes:
    """Return a long field; or as many small ones as fit, within one message or each in a message of its own."""
    unit, text = rng.choice(_units(way[-1])), rng.choice((b"x", b"\0", "\U0001f600".encode()))
    alone = _wrapped(way, unit)
    return rng.choice(
        (
            _wrapped(way, field(way[-1], text * (size // len(text)))),
            _wrapped(way, unit * (size // len(unit))),
            alone * (size // len(alone)),
        )
    )


def _groups(rng: Random, size: int) -> bytes:
    opening, closing = varint(UNKNOWN << 3 | OPEN), varint(UNKNOWN << 3 | CLOSE)
    depth = size // (len(opening) + len(closing))
    return opening * depth + closing * depth


# Requests that a server answers.
Requested = Callable[[list[bytes], bool], Message]


def _infer(images: list[bytes], raw: bool) -> Message:
    contents = {} if raw else {"bytes_contents": images}
    request = inference.ModelInferRequest(
        model_name="ensemble",
        id="7",
        inputs=[{"name": "image", "datatype": "BYTES", "shape": [len(images)], "contents": contents}],
        outputs=[{"name": "label"}],
        raw_input_contents=[b"".join(struct.pack("<I", len(each)) + each for each in images)] if raw else [],
    )
    request.parameters["top_k"].int64_param = 1
    return request


def _predict(images: list[bytes], _: bool) -> Message:
    shape = serving.TensorShapeProto(dim=[{"size": len(images)}])
    tensor = serving.TensorProto(dtype="DT_STRING", tensor_shape=shape, string_val=images)
    return serving.PredictRequest(model_spec={"name": "ensemble"}, inputs={"image": tensor})


def _classification(images: list[bytes], _: bool) -> Message:
    examples = [{"features": {"feature": {"image": {"bytes_list": {"value": [each]}}}}} for each in images]
    return serving.ClassificationRequest(
        model_spec={"name": "ensemble"}, input={"example_list": {"examples": examples}}
    )


REQUESTS: dict[str, Requested] = {
    "ModelInferRequest": _infer,
    "PredictRequest": _predict,
    "ClassificationRequest": _classification,
    "SeldonMessage": lambda images, _: seldon.SeldonMessage(binData=images[0]),
}


def _images(request: Requested, make: Make, rng: Random, size: int) -> bytes:
    return request(several(make, rng, size), rng.random() < 0.5).SerializeToString()


def _whole(request: Requested, rng: Random, size: int) -> bytes:
    return request([photograph()], rng.random() < 0.5).SerializeToString()


def _spoiled(request: Requested, ways: dict[str, Way], rng: Random, size: int) -> bytes:
    """Return a valid message, and behind it a field with another value, or many: they replace its own, or join them."""
    way = rng.choice([*ways.values(), (UNKNOWN,)])
    number, awkward = way[-1], rng.choice((rng.choice(AWKWARD), 2**63 - 1, 2**64 - 1))
    units = (
        field(number, rng.choice(CASES["strings"])),
        varint(number << 3 | VARINT) + varint(awkward),
        varint(number << 3 | FIXED64) + struct.pack("<d", rng.choice((0.0, float("nan"), float("inf"), -1e300))),
        rng.choice(_units(number)),
    )
    unit = rng.choice(units)
    count = rng.choice((1, 64, 65, max(1, min(size // len(unit), 100_000))))
    return _whole(request, rng, size) + _wrapped(way, unit * count)


def _false_lengths(rng: Random, size: int) -> bytes:
    """Return raw contents whose elements or shape are not as long as they declare."""
    asked, count = inference.ModelInferRequest(model_name="ensemble"), rng.randrange(1, 4)
    elements = [struct.pack("<I", rng.choice(AWKWARD)) + rng.randbytes(rng.randrange(40)) for _ in range(count)]
    shape = rng.choice(([1], [count], [-1], [2**62], [0], [], [1, 1], [1] * 1000))
    asked.inputs.add(name="image", datatype="BYTES", shape=shape)
    asked.raw_input_contents.extend([b"".join(elements)] * rng.choice((1, 1, 1, 2)))
    return asked.SerializeToString()


HEAD = CASES["grpc_head"]
START = PREFACE + frame(SETTINGS, 0, 0)


def call(content: bytes, more: bytes = b"") -> bytes:
    """Return a connection with one call, whose data is this content; `more` is behind the usual headers."""
    parts = [content[i : i + LARGEST_RECEIVED] for i in range(0, len(content), LARGEST_RECEIVED)]
    data = b"".join(frame(DATA, END_STREAM if i == len(parts) - 1 else 0, 1, part) for i, part in enumerate(parts))
    return START + frame(HEADERS, END_HEADERS, 1, HEAD + more) + data


def _false_prefix(rng: Random, size: int) -> bytes:
    """Return a call whose message is not as long as its prefix declares, or not compressed as it declares."""
    content = _whole(_infer, rng, size)
    declared = rng.choice((0, 1, len(content) - 1, len(content) + 1, 2**31, 2**32 - 1))
    return call(bytes([rng.choice((0, 0, 1, 7))]) + struct.pack(">I", declared) + content)


@cache
def _zeros() -> bytes:
    return zeros(BOMB_BYTES, 31)


def _bomb(rng: Random, size: int) -> bytes:
    """Return a call with a small message that says that it is 256 MB, compressed."""
    encoding = rng.choice((b"\4gzip", b"\7deflate", b"\x08identity", b"\2br"))
    return call(b"\1" + struct.pack(">I", len(_zeros())) + _zeros(), b"\0\x0dgrpc-encoding" + encoding)


def _wrong(rng: Random, size: int) -> bytes:
    """Return frames that no library writes: floods, resets, false lengths, wrong streams."""
    if rng.random() < 0.1:
        streams = (frame(HEADERS, END_HEADERS, n, HEAD) + frame(RST_STREAM, 0, n, bytes(4)) for n in range(1, 801, 2))
        return START + b"".join(streams)
    starts = {"start": START, "opened": call(b"")}
    name = rng.choice(list(starts))
    made = starts[name] + rng.choice(CASES["frames"][name]).replace(b"%h", HEAD)
    return rng.choice((made, made, made, mutated(made, rng)))

"""The fuzzer for gRPC: messages made from the descriptors of all methods."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from deployments.ingress.protocol import services
from ensemble_seldon import seldon_pb2 as seldon
from ensemble_serving.protocol import inference_pb2 as inference
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as serving
from lab.faults.fuzz import frames
from lab.faults.fuzz.frames import varint
from lab.faults.fuzz.images import IMAGES, photograph
from lab.faults.fuzz.inputs import AWKWARD, CASES, Input, damaged, several

Kind = Callable[[Random, int], bytes]
# The fields from a message to one within it.
Way = tuple[FieldDescriptor, ...]
VARINT, FIXED64, BYTES, OPEN, CLOSE = range(5)
# The number of a field that no message has.
UNKNOWN = 1000


class GrpcFuzzer:
    """Makes inputs for every method of every service.

    Attributes:
        endpoints: the methods.
        kinds: by method, what can be made for it.
    """

    def __init__(self) -> None:
        """List every method and kind."""
        methods = {f"/{one.full_name}/{method.name}": method for one in services(None) for method in one.methods}
        self.kinds = {path: kinds(method.input_type) for path, method in methods.items()}
        self.endpoints = list(self.kinds)

    def made(self, where: str, what: str, key: str, rng: Random, size: int) -> Input:
        """Make an input of a kind."""
        metadata: list[tuple[str, str | bytes]] = [("authorization", f"Bearer {key}")] if key else []
        make = self.kinds[where][what]
        if what.startswith("HTTP/2 frames"):
            return Input(where, what, make(rng, size), "http2", whole=False)
        if what == "gRPC calls: odd metadata":
            name, _, value = rng.choice(CASES["metadata"]).partition(b" ")
            metadata.append((name.decode(), value if name.endswith(b"-bin") else value.decode("latin-1")))
        method = rng.choice(CASES["grpc_methods"]).decode() if what == "gRPC calls: another method" else where
        packing: Any = rng.choice(("gzip", "deflate")) if rng.random() < 0.1 else ""
        return Input(method, what, make(rng, size), "grpc", bool(key), tuple(metadata), packing)


def kinds(message: Descriptor) -> dict[str, Kind]:
    """Return what can be sent to a method, by what is hostile or large about it."""
    made: dict[str, Kind] = {
        "gRPC messages: nothing": lambda rng, size: b"",
        "gRPC messages: zeros": lambda rng, size: bytes(size),
        "gRPC messages: random bytes": lambda rng, size: rng.randbytes(rng.randrange(300)),
        "gRPC messages: deep groups": _groups,
        "gRPC calls: odd metadata": partial(_whole, message.name),
    }
    made |= {f"gRPC fields: unknown: {name}": partial(_repeated, unit) for name, unit in _units(UNKNOWN).items()}
    for way in _ways(message):
        made |= {f"gRPC fields: {'.'.join(each.name for each in way)}: {name}": make for name, make in _large(way)}
    if message.name in REQUESTS:
        made["gRPC messages: damaged"] = lambda rng, size: damaged(_whole(message.name, rng, size), rng)
        made["gRPC messages: wrong values"] = partial(_spoiled, message)
        made |= {name: partial(_images, message.name, make) for name, make in IMAGES.items()}
    if message.name == "ModelInferRequest":
        made["gRPC messages: raw contents with false lengths"] = _false_lengths
        made["gRPC calls: another method"] = lambda rng, size: rng.randbytes(rng.randrange(20))
        made["HTTP/2 frames: a false length of the message"] = _false_prefix
        made["HTTP/2 frames: decompression bomb"] = lambda rng, size: frames.bomb(rng)
        made["HTTP/2 frames: wrong"] = lambda rng, size: frames.wrong(rng)
    return made


def field(number: int, content: bytes) -> bytes:
    """Encode a field with a length: a text, a message, or packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def _units(number: int) -> dict[str, bytes]:
    """Return a field in each of the ways of the wire, as small as it can be."""
    return {
        "empty": field(number, b""),
        "zero": varint(number << 3 | VARINT) + b"\0",
        "the largest number": varint(number << 3 | VARINT) + b"\xff" * 9 + b"\1",
        "eight bytes": varint(number << 3 | FIXED64) + bytes(8),
        "one byte, packed": field(number, b"\1" * 100),
    }


def _large(way: Way) -> Iterator[tuple[str, Kind]]:
    number, kind = way[-1].number, way[-1].type
    if kind in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        yield "long", partial(_long, way, b"x")
        yield "long, of emoji", partial(_long, way, "\U0001f600".encode())
    if kind == FieldDescriptor.TYPE_MESSAGE:
        yield "long", partial(_long, way, b"\0")
    for name, unit in _units(number).items():
        yield name, partial(_within, way, unit)
    # As many of the outer message, each with one of the inner.
    if len(way) > 1:
        yield "each in a message of its own", partial(_repeated, _wrapped(way, field(number, b"")))


def _repeated(unit: bytes, rng: Random, size: int) -> bytes:
    return unit * (size // len(unit))


def _groups(rng: Random, size: int) -> bytes:
    opening, closing = varint(UNKNOWN << 3 | OPEN), varint(UNKNOWN << 3 | CLOSE)
    depth = size // (len(opening) + len(closing))
    return opening * depth + closing * depth


def _long(way: Way, unit: bytes, rng: Random, size: int) -> bytes:
    return _wrapped(way, field(way[-1].number, unit * (size // len(unit))))


def _within(way: Way, unit: bytes, rng: Random, size: int) -> bytes:
    return _wrapped(way, _repeated(unit, rng, size))


def _wrapped(way: Way, content: bytes) -> bytes:
    for outer in reversed(way[:-1]):
        content = field(outer.number, content)
    return content


def _ways(message: Descriptor, depth: int = 4) -> list[Way]:
    """Return the way to each field of a message and of the messages within it, the outermost first."""
    found: list[Way] = []
    for each in message.fields:
        found.append((each,))
        if each.message_type is not None and depth > 1:
            found += [(each, *inner) for inner in _ways(each.message_type, depth - 1)]
    return found


def _infer(images: list[bytes], raw: bool) -> Message:
    request = inference.ModelInferRequest(model_name="ensemble", id="7")
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
    request.parameters["top_k"].int64_param = 1
    request.outputs.add(name="label")
    if raw:
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(image)) + image for image in images))
    else:
        tensor.contents.bytes_contents.extend(images)
    return request


def _predict(images: list[bytes], _: bool) -> Message:
    shape = serving.TensorShapeProto(dim=[{"size": len(images)}])
    tensor = serving.TensorProto(dtype="DT_STRING", tensor_shape=shape, string_val=images)
    return serving.PredictRequest(model_spec={"name": "ensemble"}, inputs={"image": tensor})


def _classification(images: list[bytes], _: bool) -> Message:
    request = serving.ClassificationRequest(model_spec={"name": "ensemble"})
    for image in images:
        example = request.input.example_list.examples.add()
        example.features.feature["image"].bytes_list.value.append(image)
    return request


def _seldon(images: list[bytes], _: bool) -> Message:
    return seldon.SeldonMessage(binData=images[0])


REQUESTS: dict[str, Callable[[list[bytes], bool], Message]] = {
    "ModelInferRequest": _infer,
    "PredictRequest": _predict,
    "ClassificationRequest": _classification,
    "SeldonMessage": _seldon,
}


def _images(message: str, make: Kind, rng: Random, size: int) -> bytes:
    return REQUESTS[message](several(make, rng, size), rng.random() < 0.5).SerializeToString()


def _whole(message: str, rng: Random, size: int) -> bytes:
    """Return a valid message, empty where none is known."""
    make = REQUESTS.get(message)
    return make([photograph()], rng.random() < 0.5).SerializeToString() if make else b""


def _spoiled(message: Descriptor, rng: Random, size: int) -> bytes:
    """Return a valid message, and behind it a field with another value, or many: they replace its own, or join them."""
    way = rng.choice(_ways(message))
    number = way[-1].number
    awkward = rng.choice((rng.choice(AWKWARD), 2**63 - 1, 2**64 - 1))
    unit = rng.choice(
        (
            field(number, rng.choice(CASES["strings"])),
            varint(number << 3 | VARINT) + varint(awkward),
            varint(number << 3 | FIXED64) + struct.pack("<d", rng.choice((0.0, float("nan"), float("inf"), -1e300))),
            *_units(number).values(),
        )
    )
    count = rng.choice((1, 64, 65, max(1, min(size // len(unit), 100_000))))
    return _whole(message.name, rng, size) + _wrapped(way, unit * count)


def _false_lengths(rng: Random, size: int) -> bytes:
    """Return raw contents whose elements or shape are not as long as they declare."""
    asked = inference.ModelInferRequest(model_name="ensemble")
    elements = [
        struct.pack("<I", rng.choice(AWKWARD)) + rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 4))
    ]
    shape = rng.choice(([1], [len(elements)], [-1], [2**62], [0], [], [1, 1], [1] * 1000))
    asked.inputs.add(name="image", datatype="BYTES", shape=shape)
    asked.raw_input_contents.extend([b"".join(elements)] * rng.choice((1, 1, 1, 2)))
    return asked.SerializeToString()


def _false_prefix(rng: Random, size: int) -> bytes:
    return frames.false_prefix(_whole("ModelInferRequest", rng, size), rng)

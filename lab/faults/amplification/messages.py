"""gRPC messages that are cheap to send, made of the descriptors of what a method takes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from deployments.protocol import tensorflow_serving_pb2 as serving
from ensemble_serving.protocol import inference_pb2 as inference
from lab.faults.amplification.images import IMAGES

Make = Callable[[Random, int], bytes]
VARINT, FIXED64, BYTES, OPEN, CLOSE = range(5)
# A field that no message has.
UNKNOWN = 1000
# An image may come as often as this, in about as many bytes together.
MOST_IMAGES, MOST_BYTES = 64, 30 * 2**20
# The fields from a message to one within.
Way = tuple[FieldDescriptor, ...]


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    """A field with a length: a text, a message, packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def messages(message: Descriptor) -> dict[str, Make]:
    """What may be sent to a method, by what is large about it: each of its fields, nested ones too, in each way."""
    made: dict[str, Make] = {"nothing": lambda rng, size: b"", "zeros": lambda rng, size: bytes(size)}
    made |= {f"unknown fields: {name}": partial(_repeated, unit) for name, unit in _units(UNKNOWN).items()}
    made["deep groups"] = _groups
    for way in _ways(message):
        name, kind = ".".join(each.name for each in way), way[-1].type
        if kind in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            made[f"{name}: long"] = partial(_long, way, b"x")
            made[f"{name}: long, of emoji"] = partial(_long, way, "\U0001f600".encode())
        if kind == FieldDescriptor.TYPE_MESSAGE:
            made[f"{name}: long"] = partial(_long, way, b"\0")
        for unit, content in _units(way[-1].number).items():
            made[f"{name}: {unit}"] = partial(_within, way, content)
        # Where messages hold others: as many of the outer one, each with one of the inner.
        if len(way) > 1:
            made[f"{name}: each in a message of its own"] = partial(
                _repeated, _wrapped(way, field(way[-1].number, b""))
            )
    if message.name in REQUESTS:
        made |= {f"images: {name}": partial(_images, message.name, name) for name in IMAGES}
    return made


def _units(number: int) -> dict[str, bytes]:
    """A field in each of the ways of the wire, as small as it can be."""
    return {
        "empty": field(number, b""),
        "zero": varint(number << 3 | VARINT) + b"\0",
        "the largest number": varint(number << 3 | VARINT) + b"\xff" * 9 + b"\1",
        "eight bytes": varint(number << 3 | FIXED64) + bytes(8),
        "one byte, packed": field(number, b"\1" * 100),
    }


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
    """The way to each field of a message and of those within, the outermost first."""
    found: list[Way] = []
    for each in message.fields:
        found.append((each,))
        if each.message_type is not None and depth > 1:
            found += [(each, *inner) for inner in _ways(each.message_type, depth - 1)]
    return found


def _infer(images: list[bytes], raw: bool) -> inference.ModelInferRequest:
    request = inference.ModelInferRequest(model_name="ensemble")
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
    if raw:
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(image)) + image for image in images))
    else:
        tensor.contents.bytes_contents.extend(images)
    return request


def _predict(images: list[bytes], _: bool) -> serving.PredictRequest:
    shape = serving.TensorShapeProto(dim=[{"size": len(images)}])
    tensor = serving.TensorProto(dtype="DT_STRING", tensor_shape=shape, string_val=images)
    return serving.PredictRequest(model_spec={"name": "ensemble"}, inputs={"image": tensor})


def _classification(images: list[bytes], _: bool) -> serving.ClassificationRequest:
    request = serving.ClassificationRequest(model_spec={"name": "ensemble"})
    for image in images:
        example = request.input.example_list.examples.add()
        example.features.feature["image"].bytes_list.value.append(image)
    return request


REQUESTS = {"ModelInferRequest": _infer, "PredictRequest": _predict, "ClassificationRequest": _classification}


def _images(message: str, name: str, rng: Random, size: int) -> bytes:
    image = IMAGES[name](rng, min(size, MOST_BYTES))
    count = min(rng.choice((1, MOST_IMAGES)), max(1, MOST_BYTES // (len(image) + 1)))
    return REQUESTS[message]([image] * count, rng.random() < 0.5).SerializeToString()

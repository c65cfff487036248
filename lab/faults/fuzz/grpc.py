"""The fuzzer for gRPC: messages made of the descriptors of all methods."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ensemble_seldon import seldon_pb2 as seldon
from ensemble_serving.protocol import inference_pb2 as inference
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as serving
from lab.benchmark.peer import field, varint
from lab.faults.fuzz.inputs import AWKWARD, CASES, RANDOMS, Input, damaged, hostile_images, photograph, several

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

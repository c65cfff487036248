"""Hostile gRPC: messages that are none, and frames of HTTP/2 that no library writes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from random import Random

from ensemble_serving.protocol import inference_pb2 as pb
from lab.faults.hostile.inputs import INFER, Input
from lab.faults.hostile.mutations import AWKWARD, mutated, truncated, zeros
from lab.faults.hostile.pictures import well_formed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
SERVICE = "/inference.GRPCInferenceService/"
METHODS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer")
BOMB_BYTES = 256 * 1024 * 1024


def message(rng: Random) -> pb.ModelInferRequest:
    """A message that is well formed, its image typed or raw."""
    image = well_formed("jpeg", rng)
    asked = pb.ModelInferRequest(model_name="ensemble", id="7")
    tensor = asked.inputs.add(name="image", datatype="BYTES", shape=[1])
    if rng.random() < 0.5:
        tensor.contents.bytes_contents.append(image)
    else:
        asked.raw_input_contents.append(struct.pack("<I", len(image)) + image)
    asked.parameters["top_k"].int64_param = 1
    asked.outputs.add(name="label")
    return asked


def _damaged(rng: Random) -> Input:
    content = rng.choice((mutated, truncated))(message(rng).SerializeToString(), rng)
    return Input("gRPC messages: damaged", content, "grpc")


def _random(rng: Random) -> Input:
    method = SERVICE + rng.choice(METHODS)
    return Input("gRPC messages: random bytes", rng.randbytes(rng.randrange(300)), "grpc", method)


def _lengths(rng: Random) -> Input:
    asked = message(rng)
    del asked.inputs[0].contents.bytes_contents[:], asked.raw_input_contents[:]
    elements = [
        struct.pack("<I", rng.choice(AWKWARD)) + rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 4))
    ]
    asked.raw_input_contents.extend([b"".join(elements), b"".join(elements)][: rng.choice((1, 1, 1, 2))])
    asked.inputs[0].shape[:] = rng.choice(([1], [len(elements)], [-1], [2**62], [0], [], [1, 1], [1] * 1000))
    return Input("gRPC messages: raw contents with lying lengths", asked.SerializeToString(), "grpc")


def _wrong(rng: Random) -> Input:
    asked = message(rng)
    tensor = asked.inputs[0]
    rng.choice(
        (
            lambda: asked.inputs.extend([tensor] * 50),
            lambda: setattr(asked, "model_name", rng.choice(("", "other", "x" * 100_000, "\0", "../ensemble"))),
            lambda: setattr(asked, "model_version", rng.choice(("2", "-1", "x" * 10_000))),
            lambda: setattr(asked, "id", "x" * 10**6),
            lambda: setattr(tensor, "datatype", rng.choice(("", "FP32", "BYTES\0", "x" * 10_000))),
            lambda: tensor.contents.bytes_contents.extend([b""] * rng.choice((64, 65, 10**5))),
            lambda: tensor.contents.fp32_contents.extend([float("nan")] * 10**5),
            lambda: asked.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name="label")] * 10_000),
            lambda: asked.outputs.add(name="\U0010ffff" * 1000),
            lambda: asked.parameters["top_k"].__setattr__("int64_param", rng.choice((0, -(2**63), 2**63 - 1))),
            lambda: asked.parameters["top_k"].__setattr__("string_param", "all"),
            lambda: asked.parameters["timeout_ms"].__setattr__("int64_param", rng.choice((0, -1, 2**63 - 1))),
            lambda: asked.parameters["members"].__setattr__("string_param", "perhaps"),
            lambda: [asked.parameters[str(number)] for number in range(10_000)],
        )
    )()
    return Input("gRPC messages: wrong values", asked.SerializeToString(), "grpc")


def _unknown(rng: Random) -> Input:
    method = rng.choice(
        (
            SERVICE + "Nothing",
            "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            "/ray.serve.RayServeAPIService/ListApplications",
            "/ray.serve.RayServeAPIService/Healthz",
            "/a/b",
            "/" + "x" * 4000 + "/y",
        )
    )
    return Input("gRPC messages: another method", rng.randbytes(rng.randrange(20)), "grpc", method)


def _metadata(rng: Random) -> Input:
    metadata = rng.choice(
        (
            (("x-long", "y" * 7000),),
            tuple((f"x-{number}", "y") for number in range(300)),
            (("x-bin", rng.randbytes(500)),),
            (("application", "other"),),
            (("application", ""), ("application", "ensemble")),
            (("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"),),
            (("traceparent", "x" * 5000), ("tracestate", "=,=,=" * 500)),
            (("multiplexed_model_id", "x" * 1000), ("session_id", "y"), ("request_id", "z" * 1000)),
            (("grpc-timeout-x", "1"), ("content-type-x", "x")),
        )
    )
    return Input("gRPC messages: odd metadata", message(rng).SerializeToString(), "grpc", metadata=metadata)


def frame(kind: int, flags: int, stream: int, content: bytes, length: int | None = None) -> bytes:
    """A frame of HTTP/2; `length` is what it says of its content, if that is not the truth."""
    size = (len(content) if length is None else length) & 0xFFFFFF
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def literal(name: bytes, value: bytes) -> bytes:
    """A header, neither indexed nor compressed."""

    def text(content: bytes) -> bytes:
        if len(content) < 127:
            return bytes([len(content)]) + content
        size, coded = len(content) - 127, b"\x7f"
        while size >= 128:
            coded, size = coded + bytes([size % 128 + 128]), size // 128
        return coded + bytes([size]) + content

    return b"\0" + text(name) + text(value)


def headers(more: tuple[tuple[bytes, bytes], ...] = (), path: bytes = INFER.encode()) -> bytes:
    """The header block of a call."""
    block = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"ensemble"))
    return b"".join(
        literal(*pair) for pair in (*block, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more)
    )


def call(content: bytes, more: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """A connection with one call, whose data is this."""
    largest = 16_384
    parts = [content[i : i + largest] for i in range(0, len(content), largest)] or [b""]
    data = b"".join(frame(DATA, END_STREAM if i == len(parts) - 1 else 0, 1, part) for i, part in enumerate(parts))
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, headers(more)) + data


def _prefixes(rng: Random) -> Input:
    body = message(rng).SerializeToString()
    lie = rng.choice((0, 1, len(body) - 1, len(body) + 1, 2**31, 2**32 - 1))
    return Input(
        "HTTP/2 frames: message with a lying length",
        call(bytes([rng.choice((0, 0, 1, 7))]) + struct.pack(">I", lie) + body),
        "http2",
    )


def _bomb(rng: Random) -> Input:
    packed = _zeros()
    more = ((b"grpc-encoding", rng.choice((b"gzip", b"deflate", b"identity", b"br"))),)
    return Input(
        "HTTP/2 frames: decompression bomb", call(b"\1" + struct.pack(">I", len(packed)) + packed, more), "http2"
    )


@cache
def _zeros() -> bytes:
    return zeros(BOMB_BYTES, 31)


def _frames(rng: Random) -> Input:
    start = PREFACE + frame(SETTINGS, 0, 0, b"")
    opened = start + frame(HEADERS, END_HEADERS, 1, headers())
    content = rng.choice(
        (
            lambda: start + frame(HEADERS, END_HEADERS, 1, headers(), length=2**24 - 1),
            lambda: (
                start + frame(HEADERS, 0, 1, headers()) + frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 1000)) * 500
            ),
            lambda: start + frame(HEADERS, END_HEADERS, 2, headers()),
            lambda: start + frame(HEADERS, END_HEADERS, 1, rng.randbytes(100)),
            lambda: start + frame(HEADERS, END_HEADERS, 1, headers(((b"x", b"y" * 100_000),))),
            lambda: start + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers()),
            lambda: start + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**32 - 1) * 100),
            lambda: start + frame(SETTINGS, 0, 0, b"123"),
            lambda: start + frame(PING, 0, 0, bytes(8)) * 2000,
            lambda: start + frame(RST_STREAM, 0, 1, bytes(4)),
            lambda: opened + frame(RST_STREAM, 0, 1, bytes(4)),
            lambda: b"".join(
                [start]
                + [
                    frame(HEADERS, END_HEADERS, n, headers()) + frame(RST_STREAM, 0, n, bytes(4))
                    for n in range(1, 801, 2)
                ]
            ),
            lambda: opened + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,
            lambda: opened + frame(WINDOW_UPDATE, 0, 1, bytes(4)),
            lambda: opened + frame(DATA, END_STREAM, 1, b""),
            lambda: opened + frame(DATA, END_STREAM, 1, b"\0\0"),
            lambda: opened + frame(GOAWAY, 0, 0, bytes(8)),
            lambda: opened + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + headers()),
            lambda: opened + frame(99, 255, 2**31 + 1, rng.randbytes(50)),
            lambda: PREFACE[:10],
            lambda: mutated(call(b"\0" + struct.pack(">I", 0)), rng),
            lambda: rng.randbytes(200),
        )
    )()
    return Input("HTTP/2 frames: wrong", content, "http2", whole=False)


MESSAGES: tuple[Callable[[Random], Input], ...] = (
    _damaged,
    _damaged,
    _random,
    _lengths,
    _lengths,
    _wrong,
    _wrong,
    _unknown,
    _metadata,
    _prefixes,
    _bomb,
    _frames,
    _frames,
)

"""Frames of HTTP/2 that no gRPC library writes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from random import Random

from lab.faults.fuzz.inputs import mutated, zeros

INFER = "/inference.GRPCInferenceService/ModelInfer"
BOMB_BYTES = 256 * 1024 * 1024
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, LARGEST_FRAME = 1, 4, 16_384


def varint(number: int) -> bytes:
    """Encode a number as protobuf does."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def frame(kind: int, flags: int, stream: int, content: bytes, length: int | None = None) -> bytes:
    """Return a frame of HTTP/2; `length` is what it declares, where that is not its length."""
    size = (len(content) if length is None else length) & 0xFFFFFF
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header that is neither indexed nor compressed."""

    def text(content: bytes) -> bytes:
        size = len(content)
        return (bytes([size]) if size < 127 else b"\x7f" + varint(size - 127)) + content

    return b"\0" + text(name) + text(value)


def headers(*more: tuple[bytes, bytes]) -> bytes:
    """Return the header block of a call."""
    block = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", INFER.encode()), (b":authority", b"ensemble"))
    own = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"".join(literal(*pair) for pair in (*block, *own, *more))


def call(content: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """Return a connection with one call, whose data is this content."""
    parts = [content[i : i + LARGEST_FRAME] for i in range(0, len(content), LARGEST_FRAME)]
    data = b"".join(frame(DATA, END_STREAM if i == len(parts) - 1 else 0, 1, part) for i, part in enumerate(parts))
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, headers(*more)) + data


def false_prefix(content: bytes, rng: Random) -> bytes:
    """Return a call whose message is not as long as its prefix declares, or not compressed as it declares."""
    declared = rng.choice((0, 1, len(content) - 1, len(content) + 1, 2**31, 2**32 - 1))
    return call(bytes([rng.choice((0, 0, 1, 7))]) + struct.pack(">I", declared) + content)


@cache
def _zeros() -> bytes:
    return zeros(BOMB_BYTES, 31)


def bomb(rng: Random) -> bytes:
    """Return a call with a small message that says that it is 256 MB, compressed."""
    encoding = rng.choice((b"gzip", b"deflate", b"identity", b"br"))
    return call(b"\1" + struct.pack(">I", len(_zeros())) + _zeros(), (b"grpc-encoding", encoding))


def wrong(rng: Random) -> bytes:
    """Return frames that no library writes: floods, resets, false lengths, wrong streams."""
    start = PREFACE + frame(SETTINGS, 0, 0, b"")
    opened = start + frame(HEADERS, END_HEADERS, 1, headers())
    resets = (frame(HEADERS, END_HEADERS, n, headers()) + frame(RST_STREAM, 0, n, bytes(4)) for n in range(1, 801, 2))
    made: tuple[Callable[[], bytes], ...] = (
        lambda: start + frame(HEADERS, END_HEADERS, 1, headers(), length=2**24 - 1),
        lambda: start + frame(HEADERS, 0, 1, headers()) + frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 1000)) * 500,
        lambda: start + frame(HEADERS, END_HEADERS, 2, headers()),
        lambda: start + frame(HEADERS, END_HEADERS, 1, rng.randbytes(100)),
        lambda: start + frame(HEADERS, END_HEADERS, 1, headers((b"x", b"y" * 100_000))),
        lambda: start + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers()),
        lambda: start + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**32 - 1) * 100),
        lambda: start + frame(SETTINGS, 0, 0, b"123"),
        lambda: start + frame(PING, 0, 0, bytes(8)) * 2000,
        lambda: start + frame(RST_STREAM, 0, 1, bytes(4)),
        lambda: start + b"".join(resets),
        lambda: opened + frame(RST_STREAM, 0, 1, bytes(4)),
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
    return rng.choice(made)()

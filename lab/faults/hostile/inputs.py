"""A hostile input, and the ways it takes to a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

# `http` is all that is written to a connection; `grpc` a message as it is, without protobuf's checks; `http2` frames
# that no gRPC library would write.
Way = Literal["http", "grpc", "http2"]
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Input:
    """What is sent.

    Attributes:
        kind: what is hostile about it, `<family>: <kind>`, as in `truncated pictures: png`.
        content: every byte of it.
        way: how it is sent.
        method: of gRPC.
        metadata: of gRPC.
        whole: whether it is a whole request, so that an answer is due; what is not whole ends by the client's closing.
        due: statuses that it is right to answer, though they would be wrong for others.
        pieces: by HTTP, so many, with a millisecond between two; a request has at most a few thousand.
        packing: by gRPC, how the message is compressed, `gzip` or `deflate`.
    """

    kind: str
    content: bytes
    way: Way = "http"
    method: str = INFER
    metadata: tuple[tuple[str, str | bytes], ...] = field(default=())
    whole: bool = True
    due: frozenset[str] = frozenset()
    pieces: int = 1
    packing: Literal["", "gzip", "deflate"] = ""


def request(
    method: str,
    target: str,
    headers: dict[str, str | bytes] | None = None,
    body: bytes = b"",
    *,
    length: int | None = None,
) -> bytes:
    """A request of HTTP/1.1 that closes its connection; `length` is what it says of its body, if that is not true."""
    lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close"]
    for name, value in (headers or {}).items():
        lines.append(name.encode() + b": " + (value.encode("latin-1", "replace") if isinstance(value, str) else value))
    lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def classify(image: bytes, content_type: str | bytes = "image/jpeg", **query: str) -> bytes:
    """A request for a classification."""
    asked = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    return request("POST", f"/classify{'?' if asked else ''}{asked}", {"Content-Type": content_type}, image)

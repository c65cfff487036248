"""gRPC's unary calls over HTTP/2; messages stay bytes.

A call costs a third of the CPU time that it costs by grpcio's own asynchronous client (packages/client/README.md).
Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from urllib.parse import SplitResult, unquote

import hpack

from ensemble_serving.transports.http2 import Http2, Stream
from ensemble_serving.transports.pool import Exchange, Pool
from ensemble_serving.transports.request import Headers, NoResponse, Transport


def grpc(url: SplitResult, connections: int, timeout_s: float, headers: Headers, ca_file: Path | None) -> Transport:
    """Make a gRPC transport; for the arguments see `connect`."""
    common = (
        (":method", "POST"),
        (":scheme", "https" if url.scheme == "grpcs" else "http"),
        (":authority", url.netloc.rpartition("@")[2]),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        # Our own ends first, and resets the stream; this is for a server that the reset does not reach.
        ("grpc-timeout", f"{round((timeout_s + 1) * 1000)}m"),
        *headers,
    )
    return Pool(url, connections, timeout_s, ca_file, "h2", lambda pool: _Grpc(pool, common))


class _Grpc(Http2):
    """A connection whose requests are unary calls."""

    def __init__(self, pool: Pool, common: Headers) -> None:
        super().__init__(pool)
        self._common = common

    def head(self, exchange: Exchange) -> tuple[bytes, bytes]:
        request = exchange.request
        block = _encoded((*self._common[:2], (":path", request.path), *self._common[2:], *request.headers))
        # Not compressed, and so many bytes.
        return block, b"".join((b"\0", len(request.body).to_bytes(4, "big"), request.body))

    def ended(self, stream: Stream) -> None:
        # An error may have trailers alone.
        trailers = dict(stream.headers[-1]) if stream.headers else {}
        if "grpc-status" not in trailers:
            http_status = dict(stream.headers[0]).get(":status") if stream.headers else None
            stream.exchange.fail(NoResponse(f"the response has no gRPC status; its HTTP status is {http_status}"))
            return
        status = int(trailers["grpc-status"])
        # Behind the flag and the length.
        body = bytes(stream.received[5:]) if status == 0 else unquote(trailers.get("grpc-message", "")).encode()
        stream.exchange.respond(status, body, tuple(trailers.items()))


@lru_cache(1024)
def _encoded(headers: Headers) -> bytes:
    """Encode a header block that refers to no other."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode([(name, value) for name, value in headers])
    return block

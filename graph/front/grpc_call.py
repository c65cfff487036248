"""A gRPC call as HTTP/1.1 has it: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md."""

from __future__ import annotations

from urllib.parse import quote

import grpc
from google.protobuf.message import Message

# A message begins with a byte that says whether it is compressed, and with its length.
PREFIX = 5
SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
TIMEOUT = "grpc-timeout"
# All of ASCII that can be seen, and the blank; a percent sign begins an escaped byte.
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
Metadata = list[tuple[str, str]]


class GrpcCall:
    """A call, and the context in which it is answered.

    Attributes:
        path: `/<service>/<method>`.
        metadata: the client's.
        size: bytes that have come of the message, with its prefix.
        body: these, unless they are too many.
        code: the status.
        details: its message.
        trailers: besides them.
    """

    def __init__(self, path: str, metadata: Metadata) -> None:
        """Set what is known when the headers have come."""
        self.path, self.metadata = path, metadata
        self.size, self.body = 0, bytearray()
        self.code, self.details = grpc.StatusCode.OK, ""
        self.trailers: Metadata = []

    @property
    def timeout_s(self) -> float | None:
        """How long the client waits, seconds; None where it does not say so as gRPC does."""
        text = dict(self.metadata).get(TIMEOUT, "")
        amount, unit = text[:-1], SECONDS.get(text[-1:])
        return int(amount) * unit if unit is not None and amount.isascii() and amount.isdecimal() else None

    def add(self, data: bytes, most: int) -> None:
        """A part of the message has come; of one that is larger than this, nothing is kept."""
        self.size += len(data)
        if self.size <= most + PREFIX:
            self.body += data
        else:
            self.body.clear()

    def invocation_metadata(self) -> Metadata:
        """The client's metadata."""
        return self.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status."""
        self.code = code

    def set_details(self, details: str) -> None:
        """Set the status' message."""
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Set the trailers."""
        self.trailers = list(trailing_metadata)

    def response(self, message: Message | None) -> bytes:
        """The response; the message of a call that failed is not sent."""
        status = [("grpc-status", str(self.code.value[0])), *self.trailers]
        if self.details:
            status.append(("grpc-message", quote(self.details, safe=PLAIN)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in status).encode("latin-1")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\n"
        if message is None or self.code is not grpc.StatusCode.OK:
            return head + lines + b"content-length: 0\r\n\r\n"
        body = message.SerializeToString()
        chunk = b"transfer-encoding: chunked\r\n\r\n%x\r\n\0" % (PREFIX + len(body)) + len(body).to_bytes(4, "big")
        return b"".join((head, chunk, body, b"\r\n0\r\n", lines, b"\r\n"))

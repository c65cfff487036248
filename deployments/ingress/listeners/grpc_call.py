"""A gRPC call as HTTP/1.1 has it: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md."""

import re
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from deployments.contract.caller import ADDRESS, network
from deployments.contract.names import COMPRESSED

# A message begins with a byte that says whether it is compressed, and with its length.
PREFIX = 5
SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
DURATION = re.compile("([0-9]{1,8})([HMSmun])")
# HAProxy sets shorter ones; this one is for what it does not understand.
LONGEST_S = 600.0
# Characters of a message, of up to twelve bytes each: clients take 8 KB.
MOST_WORDS = 600
# All of ASCII that can be seen, and the blank; a percent sign begins an escaped byte.
PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
Metadata = list[tuple[str, str]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\n"
OPENING = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class GrpcCall:
    """A call, and the context in which it is answered.

    Attributes:
        path: `/<service>/<method>`.
        metadata: the client's.
        most_bytes: of its message.
        body: the part of the message that has come, with its prefix.
        code: the status.
        details: its message.
        trailers: besides them.
    """

    def __init__(self, path: str, metadata: Metadata, most_bytes: int) -> None:
        """Set the call's data that its headers contain."""
        self.path, self.metadata, self.most_bytes = path, metadata, most_bytes
        self.body = bytearray()
        self.code, self.details = grpc.StatusCode.OK, ""
        self.trailers: Metadata = []

    @property
    def timeout_s(self) -> float:
        """How long the call may take, seconds."""
        known = DURATION.fullmatch(dict(self.metadata).get("grpc-timeout", ""))
        return min(LONGEST_S, int(known[1]) * SECONDS[known[2]]) if known else LONGEST_S

    @property
    def sender(self) -> str:
        """The network of the client's address."""
        return network(dict(self.metadata).get(ADDRESS, ""))

    @property
    def _declared(self) -> int:
        """The bytes that the message begins by saying; 0 until it has."""
        return int.from_bytes(self.body[1:PREFIX], "big") if len(self.body) >= PREFIX else 0

    @property
    def is_too_much(self) -> bool:
        """Whether more has come, or is to come, than may: HAProxy counts messages by what they declare."""
        declared = self._declared
        return len(self.body) > PREFIX + declared or declared > self.most_bytes

    def check(self) -> bool:
        """Check that the body is one message; otherwise set the call's status to the reason."""
        if self._declared > self.most_bytes:
            words = f"a message may have {self.most_bytes} bytes; raise ingress.max_request_bytes"
            self.code, self.details = grpc.StatusCode.RESOURCE_EXHAUSTED, words
        elif self.body and self.body[0]:
            # It would be decompressed before its key is looked at.
            self.code, self.details = grpc.StatusCode.UNIMPLEMENTED, COMPRESSED
            self.trailers.append(("grpc-accept-encoding", "identity"))
        elif len(self.body) != PREFIX + self._declared:
            words = "a call has one message, which begins with its length"
            self.code, self.details = grpc.StatusCode.INVALID_ARGUMENT, words
        return self.code is grpc.StatusCode.OK

    def invocation_metadata(self) -> Metadata:
        """Return the client's metadata."""
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
        """Encode the response, without the message of a failed call."""
        if message is None or self.code is not grpc.StatusCode.OK:
            return HEAD + self._status() + b"content-length: 0\r\n\r\n"
        return OPENING + frame(message) + self.closing()

    def closing(self) -> bytes:
        """Encode the end of a response that has begun."""
        return b"0\r\n" + self._status() + b"\r\n"

    def _status(self) -> bytes:
        status = [("grpc-status", str(self.code.value[0])), *self.trailers]
        if words := self.details[:MOST_WORDS].strip():
            status.append(("grpc-message", quote(words, safe=PLAIN, errors="replace")))
        return "".join(f"{name}: {value}\r\n" for name, value in status).encode("latin-1")


def frame(message: Message) -> bytes:
    """Encode a message as a chunk of a response."""
    body = message.SerializeToString()
    return b"%x\r\n\0%b%b\r\n" % (PREFIX + len(body), len(body).to_bytes(4, "big"), body)

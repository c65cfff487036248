"""HTTP/2 as far as a client of gRPC needs it: requests with a body, responses with trailers, flow control.

The headers that come are decoded without a dynamic table, which the settings forbid, so that a block that came before
is known. Source: https://www.rfc-editor.org/rfc/rfc9113
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from functools import lru_cache

import hpack

from ensemble_serving.transports.pool import Connection, Exchange, Pool
from ensemble_serving.transports.request import Headers, NoResponse

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
TABLE_SIZE, PUSH, MOST_STREAMS, INITIAL_WINDOW, LARGEST_FRAME = 1, 2, 3, 4, 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CANCEL, REFUSED_STREAM = 8, 7
# What the server may send before it waits for a window update, and after how much it gets one.
WINDOW, REFILL = 2**31 - 1, 2**30
DEFAULT_WINDOW = 65_535
# The most that HTTP/2 lets a frame have whose receiver says nothing, and what a block of headers may have here.
LARGEST_RECEIVED, LARGEST_BLOCK = 16_384, 262_144
# Requests at a time, until the server's settings have come.
STREAMS = 100


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Encode a frame."""
    return struct.pack(">IBI", len(content) << 8 | kind, flags, stream) + content


class Stream:
    """A request and its response: the unsent part of the body, and the received parts."""

    __slots__ = ("body", "exchange", "headers", "number", "received", "window")

    def __init__(self, exchange: Exchange, number: int, body: bytes, window: int) -> None:
        """Set the request's body, and how many bytes of it may be sent."""
        self.exchange, self.number = exchange, number
        self.body, self.window = memoryview(body), window
        self.headers: list[Headers] = []
        self.received = bytearray()


class Http2(Connection):
    """A connection with many requests at a time; a subclass defines their form."""

    def __init__(self, pool: Pool) -> None:
        """Set the pool."""
        self._pool = pool
        self._streams: dict[int, Stream] = {}
        # Those that wait for the server to take more.
        self._held: deque[Stream] = deque()
        self._buffer = bytearray()
        self._block, self._ends = bytearray(), False
        self._next, self._most = 1, STREAMS
        self._window, self._initial_window, self._largest = DEFAULT_WINDOW, DEFAULT_WINDOW, LARGEST_RECEIVED
        self._used, self._closing = 0, False

    def head(self, exchange: Exchange) -> tuple[bytes, bytes]:
        """Return the encoded header block and the body of a request."""
        raise NotImplementedError

    def ended(self, stream: Stream) -> None:
        """Respond: the stream has ended."""
        raise NotImplementedError

    @property
    def has_room(self) -> bool:
        """See `Connection.has_room`."""
        return len(self._streams) < self._most and not self._closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this client."""
        super().connection_made(transport)
        settings = ((TABLE_SIZE, 0), (PUSH, 0), (INITIAL_WINDOW, WINDOW))
        values = b"".join(struct.pack(">HI", *each) for each in settings)
        more = struct.pack(">I", WINDOW - DEFAULT_WINDOW)
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, values) + frame(WINDOW_UPDATE, 0, 0, more))

    def begin(self, exchange: Exchange) -> None:
        """See `Connection.begin`."""
        block, body = self.head(exchange)
        stream = self._streams[self._next] = Stream(exchange, self._next, body, self._initial_window)
        self._next += 2
        exchange.sent = time.perf_counter()
        parts = [frame(HEADERS, END_HEADERS, stream.number, block)]
        if not self._take(stream, parts):
            self._held.append(stream)
        self._transport.write(b"".join(parts))

    def _take(self, stream: Stream, parts: list[bytes]) -> bool:
        """Add frames of what may be sent of a body now; whether that is all of it."""
        while stream.body:
            size = min(len(stream.body), self._largest, stream.window, self._window)
            if size <= 0:
                return False
            is_last = size == len(stream.body)
            parts.append(frame(DATA, END_STREAM if is_last else 0, stream.number, bytes(stream.body[:size])))
            stream.body = stream.body[size:]
            stream.window -= size
            self._window -= size
        return True

    def _go_on(self) -> None:
        """Send what the server takes now."""
        parts: list[bytes] = []
        for _ in range(len(self._held)):
            stream = self._held.popleft()
            if stream.number in self._streams and not self._take(stream, parts):
                self._held.append(stream)
        if parts:
            self._transport.write(b"".join(parts))

    def abandon(self, exchange: Exchange) -> None:
        """See `Connection.abandon`."""
        for number, stream in self._streams.items():
            if stream.exchange is exchange:
                self._transport.write(frame(RST_STREAM, 0, number, struct.pack(">I", CANCEL)))
                self._forget(number)
                return

    def _forget(self, number: int) -> None:
        del self._streams[number]
        if self.has_room:
            self._pool.is_free(self)
        elif self._closing and not self._streams:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every request under way: none gets a response."""
        self._closing = True
        for stream in self._streams.values():
            stream.exchange.fail(NoResponse(f"the server closed the connection{f': {exc}' if exc else ''}"))
        self._streams.clear()
        self._pool.is_lost(self)

    def data_received(self, data: bytes) -> None:
        """Take every whole frame."""
        self._buffer += data
        position, end = 0, len(self._buffer)
        try:
            while end - position >= 9:
                length = int.from_bytes(self._buffer[position : position + 3], "big")
                if length > LARGEST_RECEIVED:
                    raise hpack.HPACKError(f"a frame of {length} bytes")
                if end - position < 9 + length:
                    break
                kind, flags, number = struct.unpack_from(">BBI", self._buffer, position + 3)
                content = bytes(self._buffer[position + 9 : position + 9 + length])
                position += 9 + length
                self._received(kind, flags, number & 0x7FFFFFFF, content)
        except (hpack.HPACKError, struct.error, IndexError, UnicodeDecodeError) as err:
            for stream in self._streams.values():
                stream.exchange.fail(NoResponse(f"the response is no HTTP/2: {err or type(err).__name__}"))
            self.abort()
        del self._buffer[:position]

    def _received(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if kind == DATA:
            self._data(flags, number, content)
        elif kind in {HEADERS, CONTINUATION}:
            self._headers(kind, flags, number, content)
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", content)[0]
            if number == 0:
                self._window += more
            elif number in self._streams:
                self._streams[number].window += more
            self._go_on()
        elif kind == SETTINGS and not flags & ACK:
            self._settings(content)
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, content))
        elif kind == RST_STREAM and number in self._streams:
            code = struct.unpack(">I", content)[0]
            exchange = self._streams[number].exchange
            if code == REFUSED_STREAM:
                self._pool.send_again(exchange)
            else:
                exchange.fail(NoResponse(f"the server reset the stream, error {code}"))
            self._forget(number)
        elif kind == GOAWAY:
            self._goes_away(struct.unpack_from(">I", content)[0] & 0x7FFFFFFF)

    def _data(self, flags: int, number: int, content: bytes) -> None:
        self._used += len(content)
        if self._used > REFILL:
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._used)))
            self._used = 0
        if (stream := self._streams.get(number)) is not None:
            stream.received += unpadded(flags, content)
            if flags & END_STREAM:
                self._end(stream)

    def _headers(self, kind: int, flags: int, number: int, content: bytes) -> None:
        """Read a block of headers, which may go on in further frames."""
        if kind == HEADERS:
            content = unpadded(flags, content)
            self._block = bytearray(content[5:] if flags & PRIORITY else content)
            self._ends = bool(flags & END_STREAM)
        else:
            self._block += content
        if len(self._block) > LARGEST_BLOCK:
            raise hpack.HPACKError(f"more than {LARGEST_BLOCK} bytes of headers")
        if flags & END_HEADERS:
            headers, stream = decoded(bytes(self._block)), self._streams.get(number)
            if stream is not None:
                stream.headers.append(headers)
                if self._ends:
                    self._end(stream)

    def _end(self, stream: Stream) -> None:
        self.ended(stream)
        self._forget(stream.number)

    def _settings(self, content: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", content):
            if name == MOST_STREAMS:
                self._most = value
            elif name == LARGEST_FRAME:
                self._largest = value
            elif name == INITIAL_WINDOW:
                for stream in self._streams.values():
                    stream.window += value - self._initial_window
                self._initial_window = value
        self._transport.write(frame(SETTINGS, ACK, 0))
        self._go_on()
        if self.has_room:
            self._pool.is_free(self)

    def _goes_away(self, last: int) -> None:
        """Take back the requests behind a number, which the server has not seen: it takes no more requests."""
        self._closing = True
        self._pool.is_lost(self)
        for number in [number for number in self._streams if number > last]:
            self._pool.send_again(self._streams[number].exchange)
            self._forget(number)
        if not self._streams:
            self._transport.close()


def unpadded(flags: int, content: bytes) -> bytes:
    """Return a frame's content without its padding."""
    return content[1 : len(content) - content[0]] if flags & PADDED else content


@lru_cache(1024)
def decoded(block: bytes) -> Headers:
    """Decode the headers of a block that refers to no other."""
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    return tuple((_text(name), _text(value)) for name, value in decoder.decode(block, raw=True))


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

"""Frames over a stream: small ones are read at once, large bodies into the memory that their arrays stay in."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from graph.edges.wire import PREFIX, Body, Buffer, padding

MIB = 1024 * 1024
MOST_HEADER, MOST_BODY = 16 * MIB, 1024 * MIB
# Most frames without pixels are smaller: they take one call of the system to read, and one to write.
INBOX = 64 * 1024
CREDENTIALS = struct.Struct("iII")


class Party(Protocol):
    """Who is told what comes."""

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """A frame is here."""
        ...

    def lost(self) -> None:
        """The connection has ended."""
        ...


class Frames(asyncio.BufferedProtocol):
    """One end of a connection between processes of the same user."""

    def __init__(self, party: Party) -> None:
        """Set who is told."""
        self._party = party
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray(INBOX)
        self._arrived = 0
        # A body that is on its way: the frame's kind and header, the body, and how much of it is here.
        self._large: tuple[int, bytes, Body] | None = None
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look who is at the other end."""
        # uvloop's are no subclasses.
        self._transport = cast(asyncio.Transport, transport)
        end = transport.get_extra_info("socket")
        _, uid, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != os.getuid():
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[2].data.cast("B")[self._filled :]
        return memoryview(self._inbox)[self._arrived :]

    def buffer_updated(self, nbytes: int) -> None:
        """Tell each frame that is whole."""
        if self._large is not None:
            self._filled += nbytes
            if self._filled == len(self._large[2]):
                frame, self._large = self._large, None
                self._party.received(*frame)
            return
        self._arrived += nbytes
        if self._arrived < PREFIX.size:
            return
        kind, header_size, body_size = PREFIX.unpack_from(self._inbox)
        if header_size > MOST_HEADER or body_size > MOST_BODY:
            self.abort()
            return
        begin = PREFIX.size + header_size
        if self._arrived < begin:
            if self._arrived == len(self._inbox):
                # Grown as it fills, so that a length that lies costs nothing; anew, as the loop still holds this one.
                self._inbox = self._inbox + bytes(min(begin, 2 * self._arrived) - self._arrived)
            return
        header = bytes(memoryview(self._inbox)[PREFIX.size : begin])
        here = min(self._arrived - begin, body_size)
        # Allocated by the system as it is written to: here, too, a length that lies costs nothing.
        body = np.empty(body_size, np.uint8)
        body[:here] = np.frombuffer(self._inbox, np.uint8, here, begin)
        if self._arrived > begin + here:
            # One call at a time: nothing follows a frame before it is answered.
            self.abort()
            return
        self._arrived = 0
        if len(self._inbox) > INBOX:
            self._inbox = bytearray(INBOX)
        if here == body_size:
            self._party.received(kind, header, body)
        else:
            self._large, self._filled = (kind, header, body), here

    def send(self, kind: int, header: bytes = b"", buffers: Sequence[Buffer] = ()) -> None:
        """Write a frame."""
        padded = [part for buffer in buffers for part in (buffer, padding(buffer)) if len(part)]
        size = sum(map(len, padded))
        head = PREFIX.pack(kind, len(header), size) + header
        assert self._transport is not None
        if size < INBOX:
            self._transport.write(b"".join([head, *padded]))
        else:
            self._transport.writelines([head, *padded])

    def close(self) -> None:
        """End the connection once what has been sent is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once: the other end sees it, and works for nobody any more."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell it."""
        self._party.lost()

"""Frames over a stream: small frames are read in one call, large bodies into the memory that their arrays stay in."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from typing import cast

import numpy as np

from deployments.contract.settings import MIB
from deployments.rpc.wire import PREFIX, Body, Buffer, padding

MAX_HEADER, MAX_BODY = 16 * MIB, 1024 * MIB
# Most frames without pixels are smaller: reading one takes one system call, and so does writing one.
INBOX = 64 * 1024
CREDENTIALS = struct.Struct("iII")


class Frames(asyncio.BufferedProtocol):
    """One end of a connection between two processes of the same user; a subclass handles the frames that arrive.

    Attributes:
        pid: the process at the other end.
    """

    def __init__(self) -> None:
        self.pid = 0
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray(INBOX)
        self._arrived = 0
        # A body that is arriving: the frame's kind and header, the body's memory, and how much of it is filled.
        self._large: tuple[int, bytes, Body] | None = None
        self._filled = 0

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """Handle a frame that has arrived."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check that the process at the other end belongs to the same user."""
        # uvloop's transports are no subclasses.
        self._transport = cast(asyncio.Transport, transport)
        end = transport.get_extra_info("socket")
        self.pid, uid, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != os.getuid():
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that the next bytes are read into."""
        if self._large is not None:
            return self._large[2].data.cast("B")[self._filled :]
        return memoryview(self._inbox)[self._arrived :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frame if these bytes complete it."""
        if self._large is not None:
            self._filled += nbytes
            if self._filled == len(self._large[2]):
                frame, self._large = self._large, None
                self.received(*frame)
            return
        self._arrived += nbytes
        if self._arrived < PREFIX.size:
            return
        kind, header_size, body_size = PREFIX.unpack_from(self._inbox)
        begin = PREFIX.size + header_size
        if header_size > MAX_HEADER or body_size > MAX_BODY:
            self.abort()
        elif self._arrived >= begin:
            self._begin_body(kind, bytes(memoryview(self._inbox)[PREFIX.size : begin]), body_size)
        elif self._arrived == len(self._inbox):
            # It grows as it fills, so that a false length costs nothing; the event loop still holds the old one.
            self._inbox = self._inbox + bytes(min(begin, 2 * self._arrived) - self._arrived)

    def _begin_body(self, kind: int, header: bytes, size: int) -> None:
        """Move the arrived part of the body out of the inbox."""
        begin = PREFIX.size + len(header)
        here = min(self._arrived - begin, size)
        if self._arrived > begin + here:
            # There is one call at a time, so nothing may follow a frame before it is answered.
            self.abort()
            return
        # The system allocates it as it is written to, so that here, too, a false length costs nothing.
        body = np.empty(size, np.uint8)
        body[:here] = np.frombuffer(self._inbox, np.uint8, here, begin)
        self._arrived = 0
        if len(self._inbox) > INBOX:
            self._inbox = bytearray(INBOX)
        if here == size:
            self.received(kind, header, body)
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
        """Close the connection once everything has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, so that the other end notices and stops its work."""
        if self._transport is not None:
            self._transport.abort()

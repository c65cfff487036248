"""Keeps decoding processes: hands them images, ends those that hang, and starts others in their place."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import numpy as np

from deployments.contract.errors import (
    DeadlineExceeded,
    EnsembleError,
    ImageTooLarge,
    InvalidImage,
    Overloaded,
    by_code,
)
from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.isolation.messages import Ask, Done, Failed, Room, Told, receive, send

logger = logging.getLogger("ray.serve")

# What an image may take without asking for room: as much as that of a few megapixels.
FREE_BYTES = 32 * 1024 * 1024
# The system ends a process that its keeper has not ended by then.
GRACE_S = 1.0
START_TIMEOUT_S = 60.0
# The share of its time that an image which finds no room has left when it is refused.
LEFT = 0.1
# Of a process that ended by something else, such as a lack of memory on the machine, the image may not be the cause.
ATTEMPTS = 2
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGALRM})
# An image's pixels for each preprocessing, and its width and height.
Decoded = tuple[list[Pixels], tuple[int, int]]


class Memory:
    """The memory that decoding may take, by what headers declare; who finds none waits, first come first served."""

    def __init__(self) -> None:
        """Nothing is taken."""
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: list[object] = []

    def take(self, size: int, most: int, until: float) -> bool:
        """Take room, waiting until then, a time of the monotonic clock; whether it was got."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                got = self._changed.wait_for(
                    lambda: self._waiting[0] is turn and (self._taken == 0 or self._taken + size <= most),
                    max(0.0, until - time.monotonic()),
                )
                if got:
                    self._taken += size
                return got
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def give(self, size: int) -> None:
        """Give it back."""
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


class Limits(msgspec.Struct, frozen=True):
    """What an image may be, and may take.

    Attributes:
        max_image_bytes: see `TransformerSettings`, as all the others.
        max_image_pixels: likewise.
        max_decoding_bytes: likewise.
        decode_timeout_s: likewise, seconds.
    """

    max_image_bytes: int
    max_image_pixels: int
    max_decoding_bytes: int
    decode_timeout_s: float


class NotSentError(ConnectionError):
    """The process had ended before it had all of the image."""


class Keeper:
    """A decoding process, started when it is first needed; for one thread at a time."""

    def __init__(self, memory: Memory) -> None:
        """Set the memory that it shares with others."""
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._told = msgspec.msgpack.Decoder(Told)

    @property
    def pid(self) -> int | None:
        """The process' id; None before there is one."""
        return None if self._process is None else self._process.pid

    def decode(self, encoded: bytes, wanted: Sequence[Preprocessing], limits: Limits, deadline: float) -> Decoded:
        """Decode an image, in the process.

        Args:
            encoded: the file's bytes.
            wanted: how its pixels are to be made.
            limits: what it may be, and may take.
            deadline: when nobody waits for it any more, seconds of the monotonic clock.

        Raises:
            InvalidImage: it is none, or its decoder crashed.
            ImageTooLarge: it exceeds a limit, that on time among them.
            Overloaded: there was no room for it before its deadline.
            DeadlineExceeded: the deadline has passed.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._decode(encoded, wanted, limits, deadline)
            except TimeoutError:
                self.end(at_once=True)
                logger.warning("a decoding process was ended: an image of %d bytes took too long", len(encoded))
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded("the deadline passed while the image was decoded; allow more time") from None
                raise ImageTooLarge(
                    f"decoding the image takes more than {limits.decode_timeout_s:g} s; send it smaller, or as a JPEG"
                ) from None
            except NotSentError:
                # That says nothing about this image.
                logger.warning("a decoding process had ended by %s before an image was sent", self.end())
            except (EOFError, OSError):
                ended_by = self.end()
                logger.warning("a decoding process ended by %s on an image of %d bytes", ended_by, len(encoded))
                if ended_by in CRASHES:
                    break
        raise InvalidImage("the image ended the process that decoded it; send it in another format")

    def _decode(self, encoded: bytes, wanted: Sequence[Preprocessing], limits: Limits, deadline: float) -> Decoded:
        if self._process is not None and self._process.poll() is not None:
            logger.warning("a decoding process had ended by %s; another is started", self.end())
        connection = self._connection or self._start()
        taken, began = 0, time.monotonic()
        most = max(limits.max_decoding_bytes, FREE_BYTES)
        ask = Ask(
            wanted=list(wanted),
            max_image_bytes=limits.max_image_bytes,
            max_image_pixels=limits.max_image_pixels,
            free_bytes=FREE_BYTES,
            most_bytes=most,
            seconds=max(0.0, deadline - began) + limits.decode_timeout_s + GRACE_S,
        )
        try:
            connection.settimeout(max(0.001, min(limits.decode_timeout_s, deadline - began)))
            try:
                send(connection, ask, (encoded,))
            except ConnectionError as err:
                raise NotSentError from err
            told, body = receive(connection, self._told)
            if isinstance(told, Room):
                # Refused while there is time to say so.
                if not self._memory.take(told.size, most, deadline - (deadline - began) * LEFT):
                    send(connection, False)
                    raise Overloaded("too many large images are being decoded; try again later")
                taken = told.size
                connection.settimeout(max(0.001, min(limits.decode_timeout_s, deadline - time.monotonic())))
                send(connection, True)
                told, body = receive(connection, self._told)
        finally:
            if taken:
                self._memory.give(taken)
        if isinstance(told, Failed):
            raise by_code(**told.error)
        assert isinstance(told, Done)
        sets, offset = [], 0
        for shape in told.shapes:
            sets.append(np.frombuffer(body, np.uint8, math.prod(shape), offset).reshape(shape))
            offset += sets[-1].size
        return sets, told.size

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "deployments.transformer.isolation.process", str(theirs.fileno())]
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
            )
        self._connection = ours
        try:
            ours.settimeout(START_TIMEOUT_S)
            receive(ours, msgspec.msgpack.Decoder(bool))
        except (EOFError, OSError) as err:
            ended_by = self.end()
            raise EnsembleError(f"a process to decode in did not start, and ended by {ended_by}") from err
        return ours

    def end(self, at_once: bool = False) -> signal.Signals | int | None:
        """End the process, if there is one; what it ended by, a signal or an exit status."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return None
        if not at_once:
            # One that has crashed is about to be gone: it must not look as if it had been killed here.
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        process.kill()
        status = process.wait()
        return signal.Signals(-status) if status < 0 else status

"""A worker that decodes images in a process of its own: it ends a process that hangs, and replaces one that ended."""

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

from deployments.contract.errors import DeadlineExceeded, EnsembleError, ImageTooLarge, InvalidImage, error_by_code
from deployments.contract.payload import Decoded
from deployments.contract.preprocessing import Preprocessing
from deployments.cpus import cpu_ns
from deployments.transformer.isolation.messages import Failure, Request, Reservation, Response, Success, receive, send
from deployments.transformer.settings import TransformerSettings

logger = logging.getLogger("ray.serve")

RESPONSE, STARTED = msgspec.msgpack.Decoder(Response), msgspec.msgpack.Decoder(bool)
# Memory that an image may take without a reservation: that of a megapixel.
FREE_BYTES = 8 * 1024 * 1024
# The system ends a process that its worker has not ended this long after its time.
GRACE_S = 1.0
START_TIMEOUT_S = 60.0
# The share of an image's time that is left when it is refused for lack of memory, so that the refusal arrives in time.
SHARE_FOR_REFUSAL = 0.1
# A process may end by something else than the image, such as a lack of memory on the machine.
ATTEMPTS = 2
# A process that gets no image for so long ends with this status, and gives 30 MB back; another starts in 0.2 s.
IDLE_S, IDLE = 300.0, 0
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGALRM})


class MemoryBudget:
    """The memory that decoding may take; reservations wait for it, first come first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: list[object] = []

    def take(self, size: int, limit: int, until: float) -> bool:
        """Reserve memory, bytes, waiting until then, a time of the monotonic clock; whether it was reserved."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                granted = self._changed.wait_for(
                    lambda: self._waiting[0] is turn and (self._taken == 0 or self._taken + size <= limit),
                    max(0.0, until - time.monotonic()),
                )
                self._taken += size if granted else 0
                return granted
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def give(self, size: int) -> None:
        """Return reserved memory, bytes."""
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


class NotSentError(ConnectionError):
    """The process had ended before the whole image was sent to it."""


class Worker:
    """Decodes images in a process, which is started when it is first needed; for one thread at a time.

    Attributes:
        cpu_ns: the CPU time that the process used for its last image until it responded, nanoseconds.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory, self.cpu_ns, self._clock_ns = memory, 0, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None before there is a process."""
        return None if self._process is None else self._process.pid

    def decode(
        self, encoded: bytes, wanted: Sequence[Preprocessing], settings: TransformerSettings, deadline: float
    ) -> Decoded:
        """Decode an image in the process, until a deadline by the monotonic clock, seconds.

        Raises:
            InvalidImage: it is no image, or its decoder crashed.
            ImageTooLarge: it exceeds a limit on size or time.
            Overloaded: there was no memory for it before its deadline.
            DeadlineExceeded: the deadline has passed.
        """
        self.cpu_ns = 0
        for _ in range(ATTEMPTS):
            try:
                return self._decode(encoded, wanted, settings, deadline)
            except TimeoutError:
                self.end(at_once=True)
                logger.warning("a decoding process was ended: an image of %d bytes took too long", len(encoded))
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded("the deadline passed while the image was decoded; allow more time") from None
                limit_s = settings.decode_timeout_ms / 1000
                raise ImageTooLarge(
                    f"decoding the image takes more than {limit_s:g} s (transformer.decode_timeout_ms); send it "
                    "smaller, or as a JPEG"
                ) from None
            except NotSentError:
                # The image is not the cause.
                logger.warning("a decoding process had ended by %s before an image was sent", self.end())
            except (EOFError, OSError):
                ended_by = self.end()
                logger.warning("a decoding process ended by %s on an image of %d bytes", ended_by, len(encoded))
                if ended_by in CRASHES:
                    break
        raise InvalidImage("the image ended the process that decoded it; send it in another format")

    def _decode(
        self, encoded: bytes, wanted: Sequence[Preprocessing], settings: TransformerSettings, deadline: float
    ) -> Decoded:
        connection, began = self._connect(), time.monotonic()
        if began >= deadline:
            # The process, which takes longer to start than some images have, is there for the next one.
            raise DeadlineExceeded("the deadline passed before the image was decoded; allow more time")
        limit, timeout_s = max(settings.max_decoding_bytes, FREE_BYTES), settings.decode_timeout_ms / 1000
        request = Request(
            wanted=list(wanted),
            max_image_bytes=settings.max_image_bytes,
            max_image_pixels=settings.max_image_pixels,
            free_bytes=FREE_BYTES,
            max_bytes=limit,
            seconds=max(0.0, deadline - began) + timeout_s + GRACE_S,
        )
        connection.settimeout(max(0.001, min(timeout_s, deadline - began)))
        try:
            send(connection, request, (encoded,))
        except ConnectionError as err:
            raise NotSentError from err
        response, body = self._receive(connection)
        if not isinstance(response, Reservation):
            return _result(response, body)
        is_granted = self._memory.take(response.size, limit, deadline - (deadline - began) * SHARE_FOR_REFUSAL)
        try:
            connection.settimeout(max(0.001, min(timeout_s, deadline - time.monotonic())))
            send(connection, is_granted)
            return _result(*self._receive(connection))
        finally:
            if is_granted:
                self._memory.give(response.size)

    def _receive(self, connection: socket.socket) -> tuple[Response, bytearray]:
        """Receive the process' response, and set `cpu_ns` to the CPU time that the process used for it."""
        received = receive(connection, RESPONSE)
        assert self.pid is not None
        before_ns, self._clock_ns = self._clock_ns, cpu_ns(self.pid)
        self.cpu_ns += self._clock_ns - before_ns
        return received

    def _connect(self) -> socket.socket:
        """Return the connection to the process; starts one if there is none, or if it has ended."""
        if self._process is not None and self._process.poll() is not None and (ended_by := self.end()) != IDLE:
            logger.warning("a decoding process had ended by %s; another is started", ended_by)
        if self._connection is not None:
            return self._connection
        try:
            self._connection = self._start()
            receive(self._connection, STARTED)
            assert self.pid is not None
            self._clock_ns = cpu_ns(self.pid)
        except (EOFError, OSError) as err:
            raise EnsembleError(f"a decoding process did not start ({err!r}), and ended by {self.end()}") from err
        return self._connection

    def _start(self) -> socket.socket:
        """Start a process and connect to it; raises OSError if the system has no room for one."""
        ours, theirs = socket.socketpair()
        ours.settimeout(START_TIMEOUT_S)
        with theirs:
            arguments = [str(theirs.fileno()), str(IDLE_S)]
            command = [sys.executable, "-P", "-m", "deployments.transformer.isolation.process", *arguments]
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
            )
        return ours

    def end(self, at_once: bool = False) -> signal.Signals | int | None:
        """End the process, if there is one; returns the signal or the exit status that it ended by."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return None
        if not at_once:
            # A process that has crashed is about to end, and must not look as if it had been killed here.
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        process.kill()
        status = process.wait()
        return signal.Signals(-status) if status < 0 else status


def _result(response: Response, body: bytearray) -> Decoded:
    """Return the pixels of a decoded image; raises the error of an image that can't be decoded."""
    if isinstance(response, Failure):
        raise error_by_code(**response.error)
    assert isinstance(response, Success)
    pixels, offset = [], 0
    for shape in response.shapes:
        pixels.append(np.frombuffer(body, np.uint8, math.prod(shape), offset).reshape(shape))
        offset += pixels[-1].size
    return Decoded(pixels, response.size, response.warning)

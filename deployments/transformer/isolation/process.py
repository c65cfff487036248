"""A decoding process: one image after the other, until its keeper closes the connection.

    python -m deployments.transformer.isolation.process <descriptor of a socket>

Whatever an image does to a decoder ends here: the system ends the process when its time is over, with no help from the
code that may hang, and refuses it more memory than it may take.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import msgspec
import numpy as np

from deployments.contract.errors import EnsembleError, ImageTooLarge, InvalidImage
from deployments.transformer import decoding
from deployments.transformer.isolation.messages import Ask, Done, Failed, Room, receive, send

# Beside what serves photographs of the usual kind, this may wait.
NICENESS = 5
# On top of what its image may take: threads' stacks, and what libraries keep.
SPARE_BYTES = 128 * 1024 * 1024
PR_SET_PDEATHSIG = 1
PAGE = resource.getpagesize()


def limit_memory(most_bytes: int) -> None:
    """Refuse this process more memory than it has, and so much besides."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + most_bytes + SPARE_BYTES, hard))


def work(connection: socket.socket) -> None:
    """Decode what comes; raises EOFError at the end."""
    asks, goes = msgspec.msgpack.Decoder(Ask), msgspec.msgpack.Decoder(bool)
    while True:
        ask, encoded = receive(connection, asks)
        # Its default is to end the process, which no native code can hold up.
        signal.setitimer(signal.ITIMER_REAL, ask.seconds)
        try:
            answer, buffers = decoded(connection, ask, bytes(encoded), goes)
        except EnsembleError as err:
            answer, buffers = Failed(err.to_dict()), []
        except (EOFError, OSError):
            raise
        except Exception:
            error = InvalidImage("the image can't be decoded; send it in another format")
            answer, buffers = Failed(error.to_dict()), []
        finally:
            # Or it would end a process that waits for its next image.
            signal.setitimer(signal.ITIMER_REAL, 0)
        if answer is not None:
            send(connection, answer, buffers)


def decoded(
    connection: socket.socket, ask: Ask, image: bytes, goes: msgspec.msgpack.Decoder[bool]
) -> tuple[Done | Failed | None, list[memoryview]]:
    """What to say of an image, and its pixels; None for an image that the keeper has no room for.

    Raises:
        EnsembleError: it can't be decoded.
        EOFError: the keeper has closed.
    """
    limit_memory(ask.most_bytes)
    header = decoding.inspect(image, ask)
    if header.memory > ask.most_bytes:
        raise ImageTooLarge(
            f"decoding {header.width} x {header.height} pixels takes {header.memory} bytes of memory; at most "
            f"{ask.most_bytes} are given; send it smaller, or as a JPEG"
        )
    if header.memory > ask.free_bytes:
        send(connection, Room(header.memory))
        goes_on, _ = receive(connection, goes)
        if not goes_on:
            return None, []
    sets = decoding.decode(image, header, ask.wanted)
    shapes = [(each.shape[0], each.shape[1], each.shape[2]) for each in sets]
    buffers = [np.ascontiguousarray(each).reshape(-1).data for each in sets]
    return Done((header.width, header.height), shapes), buffers


def main() -> None:
    """Serve the keeper until it closes."""
    # Ctrl-C in a terminal is for who started it; and what ends a process so often leaves no file of its memory.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nor does it outlive its keeper, should that end while a decoder hangs.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            send(connection, True)
            work(connection)
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main()

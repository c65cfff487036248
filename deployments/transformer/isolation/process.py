"""A decoding process: it decodes one image after the other, until its worker closes the connection or is idle.

    python -m deployments.transformer.isolation.process <descriptor of a socket> <seconds to wait for an image>

Whatever an image does to a decoder ends here. The system ends the process when its time is over, with no help from the
code that may hang, and refuses it more memory than it may take.
"""

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import msgspec
import numpy as np

from deployments.contract.errors import EnsembleError, ImageTooLarge, InvalidImage, Overloaded
from deployments.transformer import decoding
from deployments.transformer.isolation.messages import Failure, Request, Reservation, Success, receive, send

REQUEST, IS_GRANTED = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(bool)
# JPEGs of the usual size, which are decoded elsewhere, come first.
NICENESS = 5
# A JPEG may take so many times its own bytes where that is more. One in several scans takes 3 to 8 bytes per pixel.
MAX_TIMES_OF_JPEG = 40
# Memory besides that of the image: threads' stacks, and what libraries keep.
SPARE_BYTES = 128 * 1024 * 1024
PR_SET_PDEATHSIG = 1
PAGE = resource.getpagesize()


def limit_memory(max_bytes: int) -> None:
    """Refuse this process more memory than it has now and so much besides."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * PAGE
    limit, (_, hard) = used + max_bytes + SPARE_BYTES, resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def work(connection: socket.socket, idle_s: float) -> None:
    """Decode images.

    Raises:
        EOFError: the worker has closed the connection.
        TimeoutError: no image has come for so long.
    """
    while True:
        connection.settimeout(idle_s)
        request, encoded = receive(connection, REQUEST)
        connection.settimeout(None)
        # By default the signal ends the process, which no native code can prevent.
        signal.setitimer(signal.ITIMER_REAL, request.seconds)
        response: Success | Failure
        try:
            response, buffers = decode(connection, request, bytes(encoded))
        except EnsembleError as err:
            response, buffers = Failure(err.to_dict()), []
        except (EOFError, OSError):
            raise
        except Exception:
            error = InvalidImage("the image can't be decoded; send it in another format")
            response, buffers = Failure(error.to_dict()), []
        finally:
            # Otherwise the timer would end a process that waits for its next image.
            signal.setitimer(signal.ITIMER_REAL, 0)
        send(connection, response, buffers)


def decode(connection: socket.socket, request: Request, image: bytes) -> tuple[Success, list[memoryview]]:
    """Decode an image: its sizes and pixels.

    Raises:
        EnsembleError: it can't be decoded.
        EOFError: the worker has closed the connection.
    """
    limit_memory(request.max_bytes)
    header = decoding.read_header(image, request)
    memory = header.memory(request.wanted)
    most = max(request.max_bytes, MAX_TIMES_OF_JPEG * len(image)) if header.is_jpeg else request.max_bytes
    if memory > most:
        raise ImageTooLarge(
            f"decoding {header.width} x {header.height} pixels of this format takes {memory} bytes of memory; at most "
            f"{most} are given (transformer.max_decoding_bytes); send it smaller, or as a baseline JPEG"
        )
    if memory > request.max_bytes:
        limit_memory(memory)
    if memory > request.free_bytes:
        send(connection, Reservation(memory))
        is_granted, _ = receive(connection, IS_GRANTED)
        if not is_granted:
            raise Overloaded("too many large images are being decoded; try again later")
    decoded = decoding.decode(image, header, request.wanted)
    shapes = [(each.shape[0], each.shape[1], each.shape[2]) for each in decoded.pixels]
    sets = [np.ascontiguousarray(each).reshape(-1).data for each in decoded.pixels]
    return Success(decoded.size, decoded.warning, shapes), sets


def main() -> None:
    """Serve the worker until it closes the connection, or has no image for a long time."""
    # Ctrl-C in a terminal is for the server; and a process that crashes by design leaves no core dump.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The process ends with its worker's, even while a decoder hangs.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            send(connection, True)
            work(connection, float(sys.argv[2]))
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main()

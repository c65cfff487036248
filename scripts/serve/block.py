"""The ports of the ingress replicas for gRPC: a block that no other server on this machine has.

Serve gives replicas the first port that no replica of its own has, and means to go on to the next where another process
listens. But its gRPC servers share a port (it says `so_reuseport` as text, and gRPC heeds numbers only), so that of two
servers on a machine each would get some of the other's calls.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from scripts.errors import ScriptError

FIRST_SETTING, LAST_SETTING = "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT", "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT"
# Behind Serve's range for HTTP, and below what a system gives to whoever asks for any port; and how many a server has.
FIRST, END, SIZE = 31_000, 32_000, 100


@contextmanager
def block_of_ports() -> Iterator[None]:
    """Tell Serve of a block, which is ours until the end; not where the environment says which ports it takes.

    Raises:
        ScriptError: each has another server, or something else that listens.
    """
    if FIRST_SETTING in os.environ or LAST_SETTING in os.environ:
        yield
        return
    busy = {
        each.laddr.port for each in psutil.net_connections("tcp") if each.laddr and each.status == psutil.CONN_LISTEN
    }
    for first in range(FIRST, END, SIZE):
        held = first + SIZE - 1
        if not busy.isdisjoint(range(first, held)):
            continue
        # Bound and never used, the last one tells other servers that the block is taken.
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", held))
            except OSError:
                continue
            os.environ.update({FIRST_SETTING: str(first), LAST_SETTING: str(held)})
            try:
                yield
            finally:
                for name in (FIRST_SETTING, LAST_SETTING):
                    os.environ.pop(name, None)
            return
    raise ScriptError(
        f"other servers have the ports {FIRST} to {END - 1}, {SIZE} each; stop one, or name other ports by "
        f"{FIRST_SETTING} and {LAST_SETTING}"
    )

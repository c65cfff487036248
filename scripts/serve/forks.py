"""The fork server that starts Ray's Python processes, beside the cluster."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.serve.cluster import marked

SOCKET = "forks"
MOST_WAITING = 64


@contextmanager
def fork_server(folder: Path) -> Iterator[Path]:
    """Start it, and end it; the path of its socket in a private folder, which clients may use at once."""
    path = folder / SOCKET
    process = started(path)
    try:
        yield path
    finally:
        process.terminate()
        process.wait()


def started(path: Path) -> subprocess.Popen[bytes]:
    """A fork server that listens at a path. It alone has the socket: when it ends, nobody waits any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(MOST_WAITING)
        descriptor = listener.fileno()
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "graph.ray_internals.fork_server", str(descriptor)],
            env=marked(),
            pass_fds=[descriptor],
            start_new_session=True,
        )

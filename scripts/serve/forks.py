"""The fork server that runs Ray's Python processes, beside the cluster."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.ray_internals import fork_client
from scripts.serve.cluster import marked

SOCKET, PYTHON = "forks", "python"
MOST_WAITING = 64


@contextmanager
def fork_server(folder: Path) -> Iterator[Path]:
    """Start it in a private folder, and end it; the program that runs a script as Python would, by a fork if it can."""
    process = started(folder / SOCKET)
    try:
        yield python(folder)
    finally:
        # One that stands still would not end by SIGTERM.
        process.kill()
        process.wait()


def python(folder: Path) -> Path:
    """Write the program that asks the fork server in a folder, and runs this Python without one."""
    program = folder / PYTHON
    command = [sys.executable, "-I", "-S", fork_client.__file__, str(folder / SOCKET), sys.executable]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return program


def started(path: Path) -> subprocess.Popen[bytes]:
    """A fork server that listens at a path. It alone has the socket: when it ends, nobody waits any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(MOST_WAITING)
        descriptor = listener.fileno()
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "deployments.ray_internals.fork_server", str(descriptor)],
            env=marked(),
            pass_fds=[descriptor],
            start_new_session=True,
        )

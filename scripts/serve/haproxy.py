"""The files of Serve's HAProxy: its configuration, its state, and the socket that commands it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CONFIGURATION = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
# By the variables that tell Serve where they are. Serve's own are all in one folder that every user may enter.
FILES = {
    CONFIGURATION: "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}
SERVES_OWN = "/tmp/haproxy-serve/haproxy.cfg"  # noqa: S108
PREFIX = "ha-"
ALERT = "[ALERT]"


@contextmanager
def private_folder() -> Iterator[None]:
    """Have the files in a folder that only this user may enter, and that is gone at the end.

    Not where the environment says where they are.
    """
    if any(name in os.environ for name in FILES):
        yield
        return
    _remove_stale()
    # HAProxy allows 97 bytes for the path of a socket, of which Serve takes 57 for the node's id.
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp"))
    os.environ.update({name: str(folder / file) for name, file in FILES.items()})
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def configuration() -> Path | None:
    """The file that HAProxy runs with, if there is one yet."""
    folder = Path(os.environ.get(CONFIGURATION, SERVES_OWN)).parent
    # A folder for each node; where the environment says, those of earlier runs stay.
    return max(folder.glob("*/haproxy.cfg"), key=lambda path: path.stat().st_mtime, default=None)


def alert() -> str | None:
    """Why HAProxy does not run, if it has said so: the first thing that the one started last calls an alert."""
    files = Path(os.environ.get(CONFIGURATION, SERVES_OWN)).parent.glob("*/*.stderr.log")
    if (last := max(files, key=lambda path: path.stat().st_mtime, default=None)) is None:
        return None
    lines = last.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(" : ")[2] for line in lines if line.startswith(ALERT)), None)


def _remove_stale() -> None:
    """Remove the folders of servers that were killed."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):  # noqa: S108
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        # Anyone may name a folder so.
        with suppress(OSError, OverflowError, ValueError):
            if folder.lstat().st_uid == os.getuid() and not psutil.pid_exists(int(number)):
                shutil.rmtree(folder, ignore_errors=True)

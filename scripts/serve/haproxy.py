"""The files of Serve's HAProxy: its configuration, its state, and the socket that commands it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
# Its server holds a lock on it as long as it lives. A process's number would not do: containers that share /tmp may
# each have a process of that number, or none.
LOCK = "lock"
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
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    with _locked(folder):
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a new folder."""
    with (folder / f"{LOCK}.new").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # By its name it is there only once it is held.
        Path(file.name).rename(folder / LOCK)
        yield


def _remove_stale() -> None:
    """Remove the folders of servers that were killed: those with a lock that nobody holds."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):  # noqa: S108
        # Anyone may name a folder so, or a link; and OSError is raised where somebody holds the lock.
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
                continue
            with (folder / LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)

"""The private folder of a server: HAProxy's files, and the sockets between it and the replicas of the ingress."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "ha-"
# The server holds a lock on it as long as it runs. A process id would not do: containers that share /tmp may each have
# a process of that id, or none.
LOCK = "lock"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user may enter, and that is removed at the end; those of killed servers are, too."""
    _remove_stale()
    # Short, as the paths of Unix sockets are.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a new folder."""
    with (folder / f"{LOCK}.new").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # It has its name only once it is locked.
        Path(file.name).rename(folder / LOCK)
        yield


def _remove_stale() -> None:
    """Remove the folders of servers that were killed: those with a lock that nobody holds."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):  # noqa: S108
        # Any user may make a folder or a link of such a name; where a server holds the lock, this raises OSError.
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
                continue
            with (folder / LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)

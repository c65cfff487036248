"""The private folder of a server: Ray's files and token, the logs, HAProxy's files, and every Unix socket."""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deployments.folder_permissions import changeable_by_others
from scripts.errors import ScriptError
from scripts.home import SETTING, temporary

PREFIX = "ens-"
# Logs, and what Ray keeps; a start writes 3 MB.
NEEDED_BYTES = 100_000_000
# The server holds a lock on it as long as it runs. A process id would not do: containers that share /tmp may each have
# a process of that id, or none.
LOCK = "lock"
# Ray's folder in it, to which Ray gives everybody all rights.
RAY = "ray"
# Of the path of the folder around it. The paths of Ray's sockets have 83 bytes more, and may have 107.
MAX_PATH = 24


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user may enter; remove it at the end, unless an error refers to logs in it.

    Folders of killed and failed servers are removed as well, except for the last one's.

    Raises:
        ScriptError: another user could put another one in its place.
    """
    place = parent()
    _remove_stale(place)
    check_space(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    has_logs = False
    try:
        check_place(folder, SETTING)
        check_abilities(folder)
        with _locked(folder):
            yield folder
    except BaseException:
        has_logs = (folder / RAY).exists()
        raise
    finally:
        if not has_logs:
            shutil.rmtree(folder, ignore_errors=True)


def parent() -> Path:
    """Return the folder that holds the servers' folders, where Ray would have its own; make it if it is not there.

    Raises:
        ScriptError: the paths of sockets in it would be too long.
    """
    folder = temporary()
    if len(os.fsencode(folder)) > MAX_PATH:
        raise ScriptError(f"the path {folder} is too long for sockets in it; set {SETTING} to one of {MAX_PATH} bytes")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def check_space(folder: Path) -> None:
    """Raise ScriptError if a folder has no room for a server's files."""
    if (free := shutil.disk_usage(folder).free) < NEEDED_BYTES:
        needed = f"{free / 1e6:.0f} MB free, and a server needs {NEEDED_BYTES / 1e6:.0f}"
        raise ScriptError(f"{folder} has {needed}; remove files there, or set {SETTING} to another folder")


def check_abilities(folder: Path) -> None:
    """Raise ScriptError unless a new folder can hold sockets and locks, and programs in it can be run."""
    remedy = f"set {SETTING} to a folder of another file system, of at most {MAX_PATH} bytes"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise ScriptError(f"{folder.parent} is mounted `noexec`, and the server runs a program in it; {remedy}")
    try:
        with socket.socket(socket.AF_UNIX) as listener, (folder / f"{LOCK}.new").open("w") as file:
            listener.bind(str(folder / "socket"))
            (folder / "socket").unlink()
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as err:
        raise ScriptError(f"{folder.parent} can't hold sockets and locks ({err.strerror}); {remedy}") from err


def check_place(path: Path, setting: str) -> None:
    """Raise ScriptError, which names the setting of the place, if another user could put something else at a path."""
    if (found := changeable_by_others(path)) is not None:
        raise ScriptError(
            f"other users of this machine can change {found}, and so replace {path}; "
            f"if it is yours, run `chmod go-w {found}`, or set {setting} to a place that is yours alone"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a new folder."""
    with (folder / f"{LOCK}.new").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # It has its name only once it is locked.
        Path(file.name).rename(folder / LOCK)
        yield


def _remove_stale(around: Path) -> None:
    """Remove the folders of servers that have ended, those with a lock that nobody holds, except for the newest."""
    begun = [(began, folder) for folder in around.glob(f"{PREFIX}*") if (began := _began(folder)) is not None]
    for _, folder in sorted(begun)[:-1]:
        shutil.rmtree(folder, ignore_errors=True)


def _began(folder: Path) -> float | None:
    """Return the start, seconds since the epoch, of the server whose folder this is; None unless it has ended."""
    # Any user may make a folder or a link of such a name; where a server holds the lock, this raises OSError.
    with suppress(OSError):
        if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
            with (folder / LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return os.fstat(file.fileno()).st_mtime
    return None

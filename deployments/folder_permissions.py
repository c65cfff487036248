"""Finds the folders that other users can change: the server reads, writes and locks nothing there."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# The extended attribute of a file whose access control list names more users or groups than its mode does.
ACL = "system.posix_acl_access"
# The number of links on one way that Linux follows.
MAX_LINKS = 40


def changeable_by_others(path: Path) -> Path | None:
    """Find the first folder on the way to a path, or the path itself, in which another user could put something else.

    Root may, and so may whoever owns `/` as this process sees it. A folder that others may write to is a way, but no
    end, if it is sticky, as `/tmp` is: nobody can replace another user's files there.
    """
    owners = {0, os.getuid(), Path("/").stat().st_uid}
    level, found = Path("/"), Path("/").lstat()
    for level in _steps(path):
        try:
            found = level.lstat()
        except (FileNotFoundError, NotADirectoryError):
            # Others could make it in a sticky folder.
            return level.parent if _is_writable_by_others(level.parent) else None
        is_sticky = found.st_mode & stat.S_ISVTX
        if found.st_uid not in owners or (not is_sticky and _is_writable_by_others(level)):
            return level
    return level if _is_writable_by_others(level) else None


def _steps(path: Path) -> Iterator[Path]:
    """Walk to a path as the system does: through every folder and link, and on from where a link leads."""
    here, links = Path("/"), 0
    left = [*reversed((Path.cwd() / path).parts)]
    while left:
        part = left.pop()
        level = here.parent if part == ".." else here / part
        yield level
        with suppress(FileNotFoundError, NotADirectoryError):
            if not level.is_symlink():
                here = level
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left.extend(reversed(level.readlink().parts))


def _is_writable_by_others(level: Path) -> bool:
    """Return whether other users than this one and root may write to a file or a folder, which is no link."""
    found = level.lstat()
    if stat.S_ISLNK(found.st_mode):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    # Only root or this user is in these groups. With a list, the bit stands for everybody in the list.
    is_alone = found.st_gid in {0, os.getuid()} and not _has_acl(level)
    return bool(found.st_mode & stat.S_IWGRP) and not is_alone


def _has_acl(level: Path) -> bool:
    try:
        return ACL in os.listxattr(level)
    except OSError:
        # The file system has none.
        return False


def is_private(folder: Path) -> bool:
    """Return whether a path is a folder of this user that nobody else can enter."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, in another one.

    Raises:
        OSError: it can't be made, or one of both belongs to another user or is open to others.
    """
    for level in (folder.parent, folder):
        level.mkdir(mode=0o700, exist_ok=True)
        if not is_private(level):
            raise PermissionError(f"{level} is not a folder of this user alone")

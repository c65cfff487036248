"""Which files and folders only this user can change. Nothing is read, written or locked where another user could."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def changeable_by_others(path: Path) -> Path | None:
    """The first folder on the way to a path, or the path itself, in which another user could put something else.

    Root may, and so may whoever owns `/` as this process sees it. A folder that everybody may write to is a way, but no
    end, if it is sticky, as `/tmp` is: nobody can replace there what is another user's.
    """
    owners = {0, os.getuid(), Path("/").stat().st_uid}
    # Root's group, and one that this user has alone.
    groups = {0, os.getuid()}
    for way in (Path(os.path.abspath(path)), path.resolve()):
        for level in (*reversed(way.parents), way):
            if not os.path.lexists(level):
                # It could be made in a sticky folder.
                if level.parent.stat().st_mode & stat.S_IWOTH:
                    return level.parent
                break
            found = level.lstat()
            if found.st_uid not in owners:
                return level
            writable = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in groups)
            if stat.S_ISLNK(found.st_mode) or not writable:
                continue
            if not found.st_mode & stat.S_ISVTX or level == way:
                return level
    return None


def is_private(folder: Path) -> bool:
    """Whether a path is a folder of this user that nobody else can enter."""
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

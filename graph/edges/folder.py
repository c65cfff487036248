"""The folder of a node's sockets: one of this Ray session, on this Ray node, that only this user can enter."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import ray

# Bytes of a Unix socket's path on Linux, without the zero at its end; and of a socket's name in its folder.
MAX_PATH, MAX_NAME = 107, 24


def sockets(application: str, deployment: str) -> Path | None:
    """The folder of a deployment's sockets; None where the paths of sockets in it would be too long.

    Two Ray nodes have different folders, even on one machine: calls between them go by Serve's handle.
    """
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir()) / context.get_session_name()
    key = "\n".join((context.get_node_id(), application, deployment))
    folder = session / "e" / hashlib.sha256(key.encode()).hexdigest()[:10]
    return folder if len(os.fsencode(folder)) + MAX_NAME < MAX_PATH else None


def private(folder: Path) -> None:
    """Make a folder that only this user can enter.

    Raises:
        OSError: it can't be made, or it exists and belongs to another user or is open to others.
    """
    for level in (folder.parent, folder):
        level.mkdir(mode=0o700, exist_ok=True)
        found = level.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{level} is not a folder of this user alone")

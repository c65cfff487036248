"""Where the replicas of a node listen: a folder of this Ray session, on this Ray node, for this user alone."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import ray

# Bytes of a Unix socket's path, with the zero at its end.
MOST_PATH = 107
LONGEST_NAME = 24


def sockets(application: str, deployment: str) -> Path | None:
    """The folder of a deployment's sockets; None where its path would be too long for a socket's.

    Two Ray nodes have different folders, even on one machine: what they share is Serve's to carry.
    """
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir()) / context.get_session_name()
    key = "\n".join((context.get_node_id(), application, deployment))
    folder = session / "e" / hashlib.sha256(key.encode()).hexdigest()[:10]
    return folder if len(os.fsencode(folder)) + LONGEST_NAME < MOST_PATH else None


def private(folder: Path) -> None:
    """Make the folder, which nobody else can enter.

    Raises:
        OSError: it can't be made, or is there already and another user's, or open to others.
    """
    for level in (folder.parent, folder):
        level.mkdir(mode=0o700, exist_ok=True)
        found = level.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{level} is not a folder of this user alone")

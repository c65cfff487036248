"""The folder of a node's sockets: one of this Ray node, that only this user can enter."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import ray

from deployments.private import is_private

# Bytes of a Unix socket's path on Linux, without the zero at its end; and of a socket's name in its folder.
MAX_PATH, MAX_NAME = 107, 24


def place(application: str, name: str) -> Path:
    """Return the folder in which an application's replicas on this Ray node share files; it may not exist yet.

    It is in the folder of `ensemble serve`. A Ray that something else has started has none: everybody may write there.
    """
    context = ray.get_runtime_context()
    own = Path(context.get_temp_dir()).parent
    key = "\n".join((context.get_node_id(), application, name))
    folder = own if is_private(own) else Path(f"/tmp/ensemble-{os.getuid()}")  # noqa: S108
    return folder / hashlib.sha256(key.encode()).hexdigest()[:10]


def sockets(application: str, deployment: str) -> Path | None:
    """Return the folder of a deployment's sockets; None if the paths of sockets in it would be too long.

    Two Ray nodes have different folders, even on one machine: calls between them go by Serve's handle.
    """
    folder = place(application, deployment)
    return folder if len(os.fsencode(folder)) + MAX_NAME < MAX_PATH else None

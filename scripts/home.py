"""A home for a user who has none, as a container's user without a name, or none to write to."""

import os
from contextlib import suppress
from pathlib import Path

from deployments.folder_permissions import is_private

# Ray's environment variable for the folder that holds its files, and the folders of servers.
SETTING = "RAY_TMPDIR"


def temporary() -> Path:
    """Return the folder that holds the servers' folders; it need not be there."""
    return Path(os.environ.get(SETTING) or os.environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108


def ensure_home() -> None:
    """Give this process, and what it starts, a private home beside the servers' folders, unless it has a home.

    Raises:
        OSError: it can't be made, or belongs to another user or is open to others.
    """
    # Without HOME and a name there is none.
    with suppress(RuntimeError):
        if os.access(Path.home(), os.W_OK):
            return
    home = temporary() / f"ensemble-serving-{os.getuid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(home):
        raise PermissionError(f"{home}, the home of a user without one, is not a folder of this user alone; set HOME")
    os.environ["HOME"] = str(home)

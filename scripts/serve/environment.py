"""What must be in the environment before Ray starts: Serve's switches, HAProxy's launcher, and Ray's token."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from scripts.serve.launcher import BINARY, COMMAND
from scripts.shipped import shipped

# Of Ray's own switches, those that a Ray of several machines must not have.
ON_LOOPBACK = {
    "RAY_AUTH_MODE": "token",
    # As Ray has it on a laptop of another system: its processes listen on loopback and nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105
# What another process of this machine needs as well to talk to the cluster.
FOR_CLIENTS = (*ON_LOOPBACK, TOKEN_PATH)
# Not where Ray looks by itself: a token there turns authentication on for every other Ray of this user.
TOKEN_FILE = Path.home() / ".config" / "ensemble-serving" / "ray_token"


def switches() -> dict[str, str]:
    """The assignments of `configs/serve.env`, read as a shell reads them, but for those that need a shell."""
    lines = shipped("configs/serve.env").read_text(encoding="utf-8").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    pairs = [word.partition("=") for line in words for word in line]
    return {name: value for name, _, value in pairs if "$(" not in value}


def launcher() -> Path:
    """Where pip puts the launcher of HAProxy: beside this Python."""
    return Path(sys.executable).with_name(COMMAND)


def set_up() -> None:
    """Set every switch that the environment doesn't set, and make Ray's token if it is needed."""
    for name, value in {**switches(), **ON_LOOPBACK}.items():
        os.environ.setdefault(name, value)
    if not os.environ.get(BINARY) and launcher().exists():
        os.environ[BINARY] = str(launcher())
    # What an application imports from the folder that it is served from, Ray's workers find too.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        os.environ.setdefault(TOKEN_PATH, str(TOKEN_FILE))
        ensure_token(Path(os.environ[TOKEN_PATH]))


def ensure_token(file: Path) -> None:
    """Make Ray's token unless there is one; readable by this user alone in either case."""
    if file.exists():
        # Where it can't be changed, its owner knows why.
        with suppress(OSError):
            file.chmod(0o600)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Whole from the first moment, and the same for two starts at once.
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(name, file)
    os.unlink(name)

"""The environment that Ray starts in, with Serve's switches and Ray's token, and what of it other processes need."""

import os
import resource
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from deployments.contract.hosts import is_in_cluster
from scripts.errors import ScriptError
from scripts.serve.folder import PREFIX, check_place
from scripts.shipped import shipped

AUTHENTICATION = {"RAY_AUTH_MODE": "token"}
# Of a Ray on one machine: its processes listen on loopback and nowhere else, as on a laptop of another system.
ON_LOOPBACK = {**AUTHENTICATION, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105
# Of `OTEL_PROPAGATORS`: those that do no harm.
PROPAGATORS = {"", "tracecontext", "baggage", "none"}
FOLDER = Path.home() / ".config" / "ensemble-serving"
# Not where Ray looks by itself: a token there turns authentication on for every other Ray of this user.
TOKEN_FILE = FOLDER / "ray_token"
# Files that a server may have open: more than HAProxy needs, and few enough for programs that look at each number.
FILES = 65_536
# HAProxy takes about 260 for itself, and Ray some hundreds.
LEAST_FILES = 1024


def switches() -> dict[str, str]:
    """Read the assignments of `configs/serve.env` as a shell reads them."""
    lines = shipped("configs/serve.env").read_text(encoding="utf-8").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    pairs = [word.partition("=") for line in words for word in line]
    return {name: value for name, _, value in pairs}


def set_up(folder: Path = FOLDER) -> None:
    """Set every switch that the environment doesn't set, and make Ray's token if it is needed.

    A server has a token of its own, in its private folder. The machines of a cluster share the one in `TOKEN_FILE`.

    Raises:
        ScriptError: another user can change the file of the token.
    """
    set_variables()
    # A shell that has read the file of another server names that server's token, which ends with it.
    if Path(os.environ.get(TOKEN_PATH, "")).parent.name.startswith(PREFIX):
        del os.environ[TOKEN_PATH]
    if os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        own = TOKEN_FILE if is_in_cluster() else folder / TOKEN_FILE.name
        ensure_token(Path(os.environ.setdefault(TOKEN_PATH, str(own))))


def set_variables() -> None:
    """Set every switch that the environment doesn't set."""
    rays = AUTHENTICATION if is_in_cluster() else ON_LOOPBACK
    for name, value in {**switches(), **rays}.items():
        os.environ.setdefault(name, value)


def raise_file_limit() -> None:
    """Raise the limit of this process, and of its children, as far as the system lets it and it is useful.

    Raises:
        ScriptError: the system lets it have too few open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise ScriptError(
            f"this system lets a process have {hard} open files, and the server needs {LEAST_FILES}; raise the hard "
            "limit (`ulimit -Hn`, `LimitNOFILE=` of systemd, or `--ulimit nofile=65536` of Docker)"
        )
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def ensure_token(file: Path) -> None:
    """Make Ray's token unless there is one; in either case only this user can read it.

    Raises:
        ScriptError: another user can change the file.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_place(file if file.exists() else file.parent, TOKEN_PATH)
    if file.exists():
        # Another owner's file can't be changed.
        with suppress(OSError):
            file.chmod(0o600)
        return
    # The file is complete from the first moment, and the same for two servers that start at once.
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(name, file)
    os.unlink(name)


def check_propagators() -> None:
    """Raise ScriptError for propagators other than ours: what Ray imports would fail, if they are not installed."""
    names = os.environ.get("OTEL_PROPAGATORS", "")
    if unknown := {name.strip() for name in names.split(",")} - PROPAGATORS:
        raise ScriptError(
            f"OTEL_PROPAGATORS names {', '.join(sorted(unknown))}, and this server reads and sends the W3C header "
            "`traceparent` alone; unset it here: OTEL_PROPAGATORS= ensemble ..."
        )


def clients_file(port: int) -> Path:
    """Return the path of the file for a shell's `source`, by the HTTP port of its server."""
    return FOLDER / f"server-{port}.env"


@contextmanager
def for_clients(port: int, cluster: Mapping[str, str]) -> Iterator[Path]:
    """Write the variables that `serve status`, `ensemble deploy` and handles need; the file is removed at the end."""
    own = {name: os.environ[name] for name in (*ON_LOOPBACK, TOKEN_PATH) if name in os.environ}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in {**own, **cluster}.items()]
    file = clients_file(port)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text("".join(lines), encoding="utf-8")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def read_clients_file(port: int) -> dict[str, str]:
    """Read the variables of the server on a port.

    Raises:
        OSError: no server of this user runs there.
    """
    words = shlex.split(clients_file(port).read_text(encoding="utf-8"))
    return dict(word.split("=", 1) for word in words if "=" in word)

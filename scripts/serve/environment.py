"""What must be in the environment before Ray starts: Serve's switches, and Ray's token."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

MIB = 1024 * 1024

# Read by Serve's controller, proxies and replicas when they are imported, so set before Ray starts.
FAST_MODE = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Handle calls go by gRPC in this mode; Serve's 4 MiB would refuse the largest image that the ingress admits.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(128 * MIB),
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(128 * MIB),
    # Two replicas behind one proxy: nothing to wait for once they have answered what they were asked.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # Serve's default of 5 s fails a start beside one busy core.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    # The mode holds back 1,000 lines of a replica's log, for the access log's sake, which is off here.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_AUTH_MODE": "token",
    # As Ray has it on a laptop of another system: its processes listen on loopback and nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # OpenVINO and OpenCV have threads of their own; numpy needs none.
    "OMP_NUM_THREADS": "1",
    # A process of Ray's has 30 threads, most of them idle: glibc would give memory of its own to each.
    "MALLOC_ARENA_MAX": "2",
}
# What another process of this machine needs as well to talk to the cluster.
FOR_CLIENTS = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
TOKEN_FILE = Path.home() / ".ray" / "auth_token"


def haproxy_folder() -> Path:
    """Where Serve writes the configuration of its HAProxy."""
    return Path(os.environ.get("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", "/tmp/haproxy-serve/haproxy.cfg")).parent  # noqa: S108


def ensure_token() -> None:
    """Make Ray's token where Ray looks for it, unless there is one; readable by this user alone in either case."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    if TOKEN_FILE.exists():
        # Where Ray made it, everyone may read it. Where it can't be changed, its owner knows why.
        with suppress(OSError):
            TOKEN_FILE.chmod(0o600)
        return
    TOKEN_FILE.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32))


def set_up() -> None:
    """Set every switch that the environment doesn't set, and make Ray's token if it is needed."""
    for name, value in FAST_MODE.items():
        os.environ.setdefault(name, value)
    # What an application imports from the folder that it is served from, Ray's workers find too.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    if os.environ["RAY_AUTH_MODE"] == "token":
        ensure_token()

"""Starts Ray on this machine, as the head of a cluster or to join one, by `ray start`; prints where it is, as JSON.

    python -P -m deployments.ray_internals.start FOLDER PYTHON [--whole-dashboard | --join ADDRESS]

Everything listens on loopback; in a cluster of several machines, all but Serve's REST interface listens on the address
of this machine. Ray's processes go on when this one ends.
"""

import argparse
import json
import os
import socket
import sys
from contextlib import redirect_stdout
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from deployments.contract.hosts import LOOPBACK, RAY_METRICS_SETTING, cluster_port, host_address
from deployments.cpus import available_cpus
from deployments.ray_internals.compatibility import AGENT, SERVE_INTERFACE, START_HOOK, WORKER_HOOK, set_switches
from deployments.ray_internals.dashboard import PORT

# The file of Ray's folder with the address of the head, and the port of Ray Client's server.
ADDRESS, CLIENT_PORT = "ray_current_cluster", 10001
# The environment variable with the function that each worker runs before anything else, and that function.
IN_EVERY_WORKER = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
APPEND_FOLDER = "deployments.ray_internals.import_path.append_working_directory"
# The environment variable with the function that `ray start` runs with the node's parameters, and that function.
IN_START = "RAY_START_HOOK"
WITHOUT_CLIENT = "deployments.ray_internals.start.without_ray_client"


def without_ray_client(parameters: Any, _head: bool) -> None:
    """Make `ray start` start no server for Ray Client, for which it has no option."""
    parameters.ray_client_server_port = None


def head(folder: Path, whole_dashboard: bool) -> dict[str, Any]:
    """Start the head of a cluster.

    Returns:
        Its address, the folder of its session, and what to warn of. The address of its dashboard is empty where Serve's
        REST interface has yet to be started, in place of the whole dashboard.
    """
    lacks = [internal.problem() for internal in (SERVE_INTERFACE, START_HOOK, AGENT)]
    whole_dashboard = whole_dashboard or lacks[0] is not None
    os.environ[IN_START] = WITHOUT_CLIENT
    dashboard_port = free_port(PORT)
    more = ray_start(
        folder,
        "--head",
        f"--port={cluster_port()}",
        f"--dashboard-host={LOOPBACK}",
        f"--include-dashboard={whole_dashboard}",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={free_port(CLIENT_PORT)}",
        "--no-monitor",
        f"--metrics-export-port={metrics_port()}",
    )
    return {
        "address": (folder / ADDRESS).read_text(encoding="ascii").strip(),
        "dashboard": f"http://{LOOPBACK}:{dashboard_port}" if whole_dashboard else "",
        "session": session(folder),
        "warnings": [each for each in (*lacks, more) if each is not None],
    }


def join(folder: Path, address: str) -> dict[str, Any]:
    """Join the cluster whose head has this address; the session's folder, the metrics' address, what to warn of."""
    port = metrics_port()
    options = (f"--address={address}", f"--metrics-export-port={port}", "--dashboard-agent-listen-port=0")
    lacks = ray_start(folder, *options)
    warnings = [lacks] if lacks else []
    return {"session": session(folder), "metrics": f"{host_address()}:{port}", "warnings": warnings}


def metrics_port() -> int:
    """Return the port of this machine's metrics: the port that the environment names, or any free port."""
    return int(os.environ.get(RAY_METRICS_SETTING, 0)) or free_port()


def free_port(first: int = 0) -> int:
    """Find a port that nothing listens on: this one or the next that is free, or any for 0."""
    try:
        with socket.create_server((LOOPBACK, first)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        return free_port(first + 1)


def session(folder: Path) -> str:
    """Return the folder of the session that Ray has begun in its folder."""
    return str((folder / "session_latest").resolve())


def ray_start(folder: Path, *arguments: str) -> str | None:
    """Run `ray start`; return a problem to warn of, if any.

    Raises:
        SystemExit: it failed.
    """
    if (problem := WORKER_HOOK.problem()) is None:
        os.environ[IN_EVERY_WORKER] = APPEND_FOLDER
    # Workers listen at random ports, and not in the range of `ray start`, in which another process may have a port.
    # Ray would round a quota of half a CPU down to none, on which nothing can be placed.
    cpus = f"--num-cpus={available_cpus()}"
    common = [cpus, "--include-log-monitor=false", "--min-worker-port=0", "--max-worker-port=0"]
    sys.argv = ["ray", "start", f"--temp-dir={folder}", f"--node-ip-address={host_address()}", *common, *arguments]
    [command] = metadata.entry_points(group="console_scripts", name="ray")
    with redirect_stdout(StringIO()) as printed:
        try:
            command.load()()
        except SystemExit as end:
            if end.code:
                raise SystemExit(printed.getvalue()) from end
    return problem


def main() -> None:
    """Start the head, or join one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of Ray's files")
    parser.add_argument("python", help="the program that runs the scripts of Ray's processes")
    parser.add_argument("--whole-dashboard", action="store_true")
    parser.add_argument("--join", metavar="ADDRESS", help="of the head")
    args = parser.parse_args()
    # Ray reads some of them when it is imported.
    set_switches()
    # Ray starts each of its Python processes by this name.
    sys.executable = args.python
    printed = join(args.folder, args.join) if args.join else head(args.folder, args.whole_dashboard)
    print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    main()

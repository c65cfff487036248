"""Starts the head of a Ray cluster on this machine, whose processes go on when this one ends.

It does what `ray start --head` does, without what serving one application does not need: the autoscaler of clouds, the
copying of workers' logs to a terminal, Ray Client, and the dashboard, in whose place Serve's REST interface is one
process. Everything listens on loopback; in a cluster of several machines, all but that interface listens on the address
of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

from deployments.contract.hosts import LOOPBACK
from graph.ray_internals.address import cluster_port, host_address, metrics_port
from graph.ray_internals.agent import replace_agent
from graph.ray_internals.forking import forked, forking
from graph.ray_internals.switches import set_switches

# The port of Ray's dashboard. Serve's interface takes another one if something else listens there, and announces it.
DASHBOARD_PORT = 8265
INTERFACE = "graph.ray_internals.serve_interface"
# A file of the session with the address of the interface.
INTERFACE_ADDRESS = "serve_interface.address"
# How long the raylet may take to start, and how often that is checked, seconds.
NODE_TIMEOUT_S, LOOK_EVERY_S = 30.0, 0.02
# The working directory of what deploys. Workers on every machine put it in front of their import path, so it must have
# no code, and nobody may be able to make it or to write there.
NO_CODE = "/proc"
# What every worker runs before anything else.
IN_EVERY_WORKER = "graph.ray_internals.import_path.append_working_directory"


def start(temporary: str, whole_dashboard: bool, forks: str = "") -> dict[str, Any]:
    """Start the head.

    Args:
        temporary: the folder of Ray's files, in one that only this user can enter.
        whole_dashboard: whether the dashboard has all its pages.
        forks: the socket of a fork server, which starts Ray's Python processes; empty for none.

    Returns:
        The addresses of the cluster and of its dashboard, the folder of its session, and a command that the caller has
        to keep running. The command is Serve's REST interface, in place of the dashboard. It writes the file
        `INTERFACE_ADDRESS` of the session once it listens. With the whole dashboard it is empty.
    """
    from ray._private import node, parameter, ray_constants, services

    replace_agent()
    original: Any = services.start_ray_process

    def start_ray_process(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = [forking(argument, forks) for argument in command]
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            more["cwd"] = NO_CODE
        return original(command, process_type, *args, **more)

    services.start_ray_process = start_ray_process
    services.get_node = waiting_for(services.get_node)
    if not whole_dashboard:
        cast(Any, node.Node).start_api_server = choose_port
    os.environ[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = IN_EVERY_WORKER
    parameters = cast(Any, parameter.RayParams)(
        temp_dir=temporary,
        node_ip_address=host_address(),
        gcs_server_port=cluster_port(),
        dashboard_host=LOOPBACK,
        # Ray's default port, or another one where that is in use.
        dashboard_port=None,
        include_dashboard=True,
        include_log_monitor=False,
        no_monitor=True,
        metrics_export_port=metrics_port(),
    )
    set_switches()
    head = cast(Any, node.Node)(
        parameters, head=True, shutdown_at_exit=False, spawn_reaper=False, ray_init_cluster=True
    )
    return {
        "address": head.gcs_address,
        "dashboard": f"http://{head.webui_url}",
        "session": head.get_session_dir_path(),
        "interface": [] if whole_dashboard else interface(head, forks),
    }


def waiting_for(get_node: Any) -> Any:
    """Ray's function that waits for a node, but not for the rest of a second in which the node is there."""

    def waited(address: str, node_id: str) -> Any:
        from ray import _raylet

        gcs, give_up = cast(Any, _raylet).GcsClient(address=address), time.monotonic() + NODE_TIMEOUT_S
        while not gcs.get_all_node_info() and time.monotonic() < give_up:
            time.sleep(LOOK_EVERY_S)
        return get_node(address, node_id)

    return waited


def choose_port(head: Any, **_: Any) -> None:
    """In place of starting the dashboard: where Serve's interface listens, unless another process has the port."""
    head._webui_url = f"{LOOPBACK}:{DASHBOARD_PORT}"


def interface(head: Any, forks: str) -> list[str]:
    """The command that serves Serve's REST interface."""
    arguments = [f"--gcs-address={head.gcs_address}", f"--cluster-id={head.cluster_id.hex()}"]
    arguments += [f"--session={head.session_name}", f"--port={head.webui_url.rpartition(':')[2]}"]
    arguments += [f"--address-file={Path(head.get_session_dir_path()) / INTERFACE_ADDRESS}"]
    return forked([sys.executable, "-P", "-m", INTERFACE, *arguments], forks, "stay")


def main() -> None:
    """Start the head and print its addresses as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("temporary", help="the folder of Ray's files")
    parser.add_argument("--whole-dashboard", action="store_true")
    parser.add_argument("--forks", default="", help="the socket of a fork server")
    args = parser.parse_args()
    print(json.dumps(start(args.temporary, args.whole_dashboard, args.forks)), flush=True)


if __name__ == "__main__":
    main()

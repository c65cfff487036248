"""Adds a node to a Ray cluster, given the cluster's address: on the same machine until SIGTERM, or on another.

`ray start` can't join a cluster that listens on loopback, and lets workers import from the working directory first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from typing import Any, cast

from graph.ray_internals.address import host_address, is_in_cluster, metrics_port
from graph.ray_internals.agent import replace_agent
from graph.ray_internals.head import IN_EVERY_WORKER
from graph.ray_internals.switches import set_switches

# Of the second node on one machine, whose cores the first one has already.
CPUS = 2


def parameters(address: str, temporary: str | None = None) -> Any:
    """Ray's parameters of a node that joins the cluster whose GCS has this address; its files are in the head's folder.

    On another machine they are in one of that machine.
    """
    from ray._private import parameter

    return cast(Any, parameter.RayParams)(
        gcs_address=address,
        temp_dir=temporary,
        node_ip_address=host_address(),
        num_cpus=None if is_in_cluster() else CPUS,
        metrics_export_port=metrics_port() if is_in_cluster() else None,
        include_log_monitor=False,
        dashboard_agent_listen_port=0,
    )


def join(address: str, temporary: str) -> dict[str, str]:
    """Start a node that goes on when this process ends.

    Returns:
        The folder of its session, and the address of its metrics.
    """
    from ray._private import node, ray_constants

    set_switches()
    replace_agent()
    os.environ[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = IN_EVERY_WORKER
    joining = parameters(address, temporary)
    joined = cast(Any, node.Node)(joining, head=False, shutdown_at_exit=False, spawn_reaper=False)
    metrics = f"{host_address()}:{joining.metrics_export_port}"
    return {"session": joined.get_session_dir_path(), "metrics": metrics}


def main() -> None:
    """Join until SIGTERM; or start a node that goes on, and print as JSON what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the cluster's GCS")
    parser.add_argument("--goes-on", metavar="FOLDER", help="leave the node running, with Ray's files in this folder")
    args = parser.parse_args()
    if args.goes_on:
        print(json.dumps(join(args.address, args.goes_on)), flush=True)
        return
    from ray._private import node

    replace_agent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    joined = cast(Any, node.Node)(parameters(args.address), head=False, shutdown_at_exit=False, spawn_reaper=False)
    print("joined", flush=True)
    signal.sigwait({signal.SIGTERM})
    joined.kill_all_processes(check_alive=False)


if __name__ == "__main__":
    main()

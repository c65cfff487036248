"""A further node of a Ray cluster, on this machine, until SIGTERM; asked for the cluster's address.

`ray start` would do, but that it has no way to join a cluster that listens on loopback.
"""

from __future__ import annotations

import argparse
import signal
from typing import Any, cast

from graph.ray_internals.head import LOOPBACK

CPUS = 2


def parameters(address: str) -> Any:
    """Ray's parameters of a node that joins the cluster whose GCS has this address."""
    from ray._private import parameter

    return cast(Any, parameter.RayParams)(
        gcs_address=address,
        node_ip_address=LOOPBACK,
        num_cpus=CPUS,
        include_log_monitor=False,
        dashboard_agent_listen_port=0,
    )


def main() -> None:
    """Join, say so, and leave when told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the cluster's GCS")
    address = parser.parse_args().address
    from ray._private import node

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    joined = cast(Any, node.Node)(parameters(address), head=False, shutdown_at_exit=False, spawn_reaper=False)
    print("joined", flush=True)
    signal.sigwait({signal.SIGTERM})
    joined.kill_all_processes(check_alive=False)


if __name__ == "__main__":
    main()

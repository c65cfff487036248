"""Adds a node on this machine to a cluster that listens on loopback, until Ctrl-C; `ray start` can't join such a one.

python -m lab.second_node ADDRESS
"""

from __future__ import annotations

import signal
import sys
from typing import Any, cast

from ray._private import node, parameter

from deployments.contract.hosts import LOOPBACK
from deployments.ray_internals.compatibility import set_switches

# The first node has the machine's cores already.
CPUS = 2


def main() -> None:
    """Join, and leave at SIGINT."""
    set_switches()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    joining = cast(Any, parameter.RayParams)(
        gcs_address=sys.argv[1],
        node_ip_address=LOOPBACK,
        num_cpus=CPUS,
        include_log_monitor=False,
        dashboard_agent_listen_port=0,
    )
    joined = cast(Any, node.Node)(joining, head=False, shutdown_at_exit=False, spawn_reaper=False)
    print("joined", flush=True)
    signal.sigwait({signal.SIGINT})
    joined.kill_all_processes(check_alive=False)


if __name__ == "__main__":
    main()

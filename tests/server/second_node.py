"""A second Ray node on this machine, of the cluster whose address is given, until SIGTERM.

`ray start` would do, but that it has no way to join a cluster which listens on loopback.
"""

import signal
import sys

from ray._private.node import Node
from ray._private.parameter import RayParams

parameters = RayParams(
    gcs_address=sys.argv[1],
    node_ip_address="127.0.0.1",
    num_cpus=2,
    include_log_monitor=False,
    dashboard_agent_listen_port=0,
)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
print("joined", flush=True)
signal.sigwait({signal.SIGTERM})
node.kill_all_processes(check_alive=False)

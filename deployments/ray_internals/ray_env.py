"""Ray's own switches that its documentation does not have, for whatever belongs to a cluster of this application."""

from __future__ import annotations

import os

SWITCHES = {
    # Agents notice the raylet's end by a pipe. Otherwise they look at their parent process five times in two seconds,
    # and the parent of a forked process is not the raylet.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    # The raylet's store of objects is connected to as soon as it listens, not a second later, and for as long as usual.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
    # Ray runs its workers with niceness 15, as work in the background. Replicas answer requests.
    "RAY_worker_niceness": "0",
}


def set_switches() -> None:
    """Set the switches in the environment, except switches that it already has."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)

"""The address of this machine in a cluster of several machines; loopback where it is the only one."""

from __future__ import annotations

import os
import socket

from deployments.contract.hosts import HOST_SETTING, LOOPBACK, RAY_METRICS_SETTING

# Environment variables: the address under which the other machines reach this one, and the port of the cluster's head.
HOST_ADDRESS, CLUSTER_PORT = HOST_SETTING, "ENSEMBLE_CLUSTER_PORT"
# Ray's processes listen on loopback and nowhere else, as they do on a laptop of another system.
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray's own default for the head of a cluster.
DEFAULT_CLUSTER_PORT = 6379


def host_address() -> str:
    """Return this machine's address in its cluster."""
    return os.environ.get(HOST_ADDRESS, LOOPBACK)


def is_in_cluster() -> bool:
    """Return whether this machine belongs to a cluster of several machines."""
    return HOST_ADDRESS in os.environ


def cluster_port() -> int:
    """Return the port that machines join at; 0, for any port, if this machine is the only one.

    Raises:
        ValueError: the environment variable is no number.
    """
    return int(os.environ.get(CLUSTER_PORT, DEFAULT_CLUSTER_PORT)) if is_in_cluster() else 0


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

"""Host names and addresses, as in configurations and in the header `Host`; and the address of this machine."""

import ipaddress
import os

LOOPBACK = "127.0.0.1"
# Of a list of names or origins: every one.
ANY = "*"
# The environment variable for the port where a Ray that `ensemble serve` starts exports metrics.
RAY_METRICS_SETTING = "RAY_METRICS_PORT"
# Environment variables of a cluster of several machines: the address under which the others reach this one, and the
# port of the head; and Ray's own default for that port.
HOST_ADDRESS, CLUSTER_PORT, DEFAULT_CLUSTER_PORT = "ENSEMBLE_HOST_ADDRESS", "ENSEMBLE_CLUSTER_PORT", 6379


def is_address(host: str) -> bool:
    """Tell whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether an address or a name stands for the loopback interface."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"


def in_url(host: str) -> str:
    """Return a host as URLs have it: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def host_address() -> str:
    """Return this machine's address in its cluster; loopback where it is the only machine."""
    return os.environ.get(HOST_ADDRESS, LOOPBACK)


def is_in_cluster() -> bool:
    """Tell whether this machine belongs to a cluster of several machines."""
    return HOST_ADDRESS in os.environ


def cluster_port() -> int:
    """Return the port that machines join at; 0, for any port, if this machine is the only one.

    Raises:
        ValueError: the environment variable is no number.
    """
    return int(os.environ.get(CLUSTER_PORT, DEFAULT_CLUSTER_PORT)) if is_in_cluster() else 0

"""Host names and addresses, as in configurations and in the header `Host`."""

from __future__ import annotations

import ipaddress

# The environment variable for the port where a Ray that `ensemble serve` starts exports metrics.
RAY_METRICS_SETTING = "RAY_METRICS_PORT"
# That for the address of this machine in a cluster of several, where they are then.
HOST_SETTING = "ENSEMBLE_HOST_ADDRESS"
LOOPBACK = "127.0.0.1"


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

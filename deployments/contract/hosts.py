"""Host names and addresses, as in configurations and in the header `Host`."""

from __future__ import annotations

import ipaddress

# The environment variable for the port, on loopback, where a Ray that `ensemble serve` starts exports metrics.
RAY_METRICS_SETTING = "RAY_METRICS_PORT"


def is_address(host: str) -> bool:
    """Whether it is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address or a name is that of the loopback interface."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"

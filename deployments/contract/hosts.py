"""Names and addresses of machines, as configurations and the header `Host` have them."""

from __future__ import annotations

import ipaddress


def is_address(host: str) -> bool:
    """Whether it is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is this machine's own alone."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"

"""Looks whether the ports that serving needs are free."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from scripts.errors import ScriptError

EVERYWHERE = "0.0.0.0"  # noqa: S104
HTTP_PORT, GRPC_PORT = 8000, 9000
# What Serve listens on behind HAProxy, by the variable that moves it; on every interface, which it has no setting for.
BEHIND_HAPROXY = {
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}


@dataclass(frozen=True)
class Port:
    """A port that is to be listened on.

    Attributes:
        host: an address of this machine.
        number: of the port.
        setting: what moves it elsewhere; empty if nothing does.
    """

    host: str
    number: int
    setting: str = ""


def wanted(config: dict[str, Any]) -> list[Port]:
    """The ports that serving a Serve config takes, that of HTTP first and that of gRPC second."""
    http, grpc = config.get("http_options", {}), config.get("grpc_options", {})
    host = http.get("host", "127.0.0.1")
    ports = [
        Port(host, http.get("port", HTTP_PORT), "http_options.port"),
        Port(host, grpc.get("port", GRPC_PORT), "grpc_options.port"),
    ]
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        ports += [Port(EVERYWHERE, int(os.environ.get(name, port)), name) for name, port in BEHIND_HAPROXY.items()]
    return ports


def check_ports(*ports: Port) -> None:
    """Raise ScriptError if another program listens on one of the ports."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((port.host, port.number))
            except OSError as err:
                or_else = f", or choose another port by {port.setting}" if port.setting else ""
                raise ScriptError(
                    f"{port.host}:{port.number} can't be listened on: {err.strerror}; stop what uses it{or_else}"
                ) from err

"""The ports that serving needs, and whether they are free."""

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any

from deployments.contract.hosts import LOOPBACK, RAY_METRICS_SETTING, in_url
from scripts.errors import ScriptError

HTTP_PORT, GRPC_PORT, METRICS_PORT, RAY_METRICS_PORT = 8000, 9000, 9101, 9102
LAST_PORT, LOOPBACK_TIMEOUT_S = 65535, 2.0
# The environment variable for the port of HAProxy's own metrics; `RAY_METRICS_SETTING` is for that of Ray's.
METRICS_SETTING = "ENSEMBLE_HAPROXY_METRICS_PORT"


@dataclass(frozen=True)
class Port:
    """A port to listen on, at an address of this machine, and what chooses another number, if anything does."""

    host: str
    number: int
    setting: str = ""

    def __str__(self) -> str:
        return f"{in_url(self.host)}:{self.number}"


def wanted(config: dict[str, Any]) -> tuple[Port, Port, Port, Port]:
    """Return the ports of a Serve config: for HTTP, for gRPC, and on loopback for HAProxy's metrics and Ray's."""
    http, grpc = config.get("http_options") or {}, config.get("grpc_options") or {}
    host = http.get("host", LOOPBACK)
    return (
        Port(host, http.get("port", HTTP_PORT), "http_options.port"),
        Port(host, grpc.get("port", GRPC_PORT), "grpc_options.port"),
        Port(LOOPBACK, _named(METRICS_SETTING, METRICS_PORT), METRICS_SETTING),
        Port(LOOPBACK, _named(RAY_METRICS_SETTING, RAY_METRICS_PORT), RAY_METRICS_SETTING),
    )


def _named(setting: str, default: int) -> Any:
    """Read the port from an environment variable; text that is no number stays text, which `check_ports` refuses."""
    given = os.environ.get(setting, default)
    return int(given) if str(given).isdecimal() else given


def move(config: dict[str, Any], first: int) -> None:
    """Set a Serve config's ports to four in a row, from the first on, whatever ports it names.

    Raises:
        ScriptError: there are no such ports.
    """
    if not 1 <= first <= LAST_PORT - 3:
        raise ScriptError(f"--ports-from {first}: it takes four ports, and they are from 1 to {LAST_PORT}")
    config["http_options"] = {**(config.get("http_options") or {}), "port": first}
    config["grpc_options"] = {**(config.get("grpc_options") or {}), "port": first + 1}
    os.environ[METRICS_SETTING] = str(first + 2)
    os.environ[RAY_METRICS_SETTING] = str(first + 3)


def check_loopback() -> None:
    """Raise ScriptError if this machine can't connect to itself, as the parts of a server do."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), LOOPBACK_TIMEOUT_S),
        ):
            return
    except OSError as err:
        raise ScriptError(
            f"this machine can't connect to itself at {LOOPBACK}: {err}; `ip link set lo up` turns loopback on"
        ) from err


def check_ports(*ports: Port) -> None:
    """Raise ScriptError, which names every port that is none, or can't be listened on."""
    if wrong := [port for port in ports if not isinstance(port.number, int) or not 1 <= port.number <= LAST_PORT]:
        named = "; ".join(f"{port.setting or port.host} is {port.number!r}" for port in wrong)
        raise ScriptError(f"{named}. A port is a number from 1 to {LAST_PORT}, in YAML without quotes")
    problems = []
    for port in ports:
        try:
            with socket.socket(socket.AF_INET6 if ":" in port.host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((port.host, port.number))
        except OSError as err:
            if isinstance(err, socket.gaierror) or err.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                why = f"{port.host} is no address of this machine: {err.strerror}"
                raise ScriptError(f"{why}. Correct http_options.host; `ip address` lists addresses") from err
            setting = f" ({port.setting})" if port.setting else ""
            problems.append(f"{port}{setting} can't be listened on: {err.strerror}")
    if problems:
        raise ScriptError(
            f"{'; '.join(problems)}. Free {'it' if len(problems) == 1 else 'them'}, or change the setting in "
            "brackets (a cluster's `http_options` and `grpc_options` are set at its head); "
            "`ensemble serve --ports-from N` or `make serve FLAGS='--ports-from N'` takes N to N + 3"
        )

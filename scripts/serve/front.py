"""What receives clients' requests: HAProxy, which forwards them to the ingress' own servers, or Serve's proxy."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deployments.ingress.listeners.slot import APPLICATION, FOLDER, FUNCTIONS
from scripts.configuration import why_serve
from scripts.errors import ScriptError
from scripts.serve.haproxy import HAProxy
from scripts.serve.haproxy_config import Listening
from scripts.serve.ports import Port, wanted

# Two full batches at nodes of their own, and as many images that wait. A second batcher would make smaller batches.
FEW = 64
BY_SERVE = "Serve's own proxy takes requests: {why}; docs/operations.md says what it lacks"


@contextmanager
def in_front(folder: Path, config: dict[str, Any], certificate: tuple[Path, Path] | None) -> Iterator[HAProxy | None]:
    """Put HAProxy in front of the application of a Serve config, which is changed for it; None for Serve's proxy.

    It listens on the configuration's ports; with a certificate and its key, by TLS. Its files and its sockets are in a
    private folder.

    Raises:
        ScriptError: TLS is asked for and Serve's proxy is in front, or HAProxy does not start.
    """
    if (why := why_serve(config)) is not None:
        if certificate is not None:
            raise ScriptError(f"TLS ends at HAProxy, but {BY_SERVE.format(why=why)}")
        print(BY_SERVE.format(why=why), flush=True)
        yield None
        return
    # Serve starts none of its proxies.
    config["proxy_location"] = "Disabled"
    grpc_options = config.get("grpc_options") or {}
    reflects, functions = grpc_options.get("enable_reflection", True), grpc_options.get("grpc_servicer_functions")
    protocols = (config["applications"][0].get("args") or {}).get("protocols") or ()
    http, grpc, metrics, _ = wanted(config)
    ports = http.number, grpc.number, metrics.number
    listening = Listening(http.host, *ports, certificate, reflects, few(config), protocols)
    haproxy = HAProxy(folder, listening)
    os.environ.update({FOLDER: str(folder), APPLICATION: config["applications"][0].get("name", "default")})
    os.environ[FUNCTIONS] = json.dumps(functions)
    try:
        yield haproxy
    finally:
        for name in (FOLDER, APPLICATION, FUNCTIONS):
            os.environ.pop(name, None)
        haproxy.end()


def needed_ports(config: dict[str, Any]) -> list[Port]:
    """Return the ports of a Serve config that must be free, with HAProxy's metrics only where HAProxy is in front."""
    http, grpc, metrics, ray_metrics = wanted(config)
    return [http, grpc, ray_metrics, *([metrics] if why_serve(config) is None else [])]


def few(config: dict[str, Any]) -> int:
    """Return the number of requests that the ingress's first replica gets alone: none where members run in it."""
    members = (config["applications"][0].get("args") or {}).get("members") or [{"placement": "inline"}]
    return FEW if all(member.get("placement", "separate") == "separate" for member in members) else 0

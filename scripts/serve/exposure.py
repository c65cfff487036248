"""Who could reach the service, by its configuration: beyond this machine only with keys, unless somebody says so."""

from __future__ import annotations

from typing import Any

from deployments.contract.hosts import is_loopback
from scripts.errors import ScriptError

IMPORT_PATH = "graph.app:build"
UNENCRYPTED = "warning: what clients send, their keys too, travels unencrypted; docs/security.md says how to have TLS"
OTHERS = "warning: Serve's own ports can be reached too, in the clear; docs/security.md has rules for a firewall"


def has_keys(config: dict[str, Any]) -> bool:
    """Whether every application of a Serve config asks for a key."""
    applications = config.get("applications") or []
    return bool(applications) and all(map(_asks, applications))


def check_exposure(config: dict[str, Any], without_keys: bool, tls: bool) -> None:
    """Look whether only those can reach the service who may; turn gRPC reflection off where there are keys.

    Args:
        config: a Serve config, with its `http_options.host`; gRPC listens there too.
        without_keys: whether somebody said that anyone may come in.
        tls: whether there is TLS.

    Raises:
        ScriptError: others can reach it, and an application asks for no key, or lets anyone unload its members.
    """
    keys = has_keys(config)
    if keys:
        # It is answered without asking for one.
        config.setdefault("grpc_options", {})["enable_reflection"] = False
    host = config["http_options"]["host"]
    if is_loopback(host):
        return
    if not keys and not without_keys:
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and it asks for no key. Make a key "
            "(ensemble keys add NAME --file FILE) and name the file in args (access: {keys: FILE}); or, if "
            "anyone may come in, say --without-keys"
        )
    if any(_access(application).get("operators") == "anyone" for application in config.get("applications") or []):
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and by access.operators anyone may load "
            "and unload members. Name a file of keys (access: {keys: FILE}), and in operators those keys that may"
        )
    print(OTHERS, flush=True)
    if not tls:
        print(UNENCRYPTED, flush=True)


def _asks(application: dict[str, Any]) -> bool:
    return application.get("import_path") == IMPORT_PATH and bool(_access(application).get("keys"))


def _access(application: dict[str, Any]) -> dict[str, Any]:
    return (application.get("args") or {}).get("access") or {}

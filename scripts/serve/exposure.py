"""Who could reach the service, by its configuration: other machines only with keys, unless a flag says otherwise."""

from __future__ import annotations

from typing import Any

from deployments.contract.hosts import is_loopback
from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError

UNENCRYPTED = "warning: what clients send, their keys too, travels unencrypted; docs/security.md says how to have TLS"
OTHERS = "warning: Serve's own ports can be reached too, in the clear; docs/security.md has rules for a firewall"


def has_keys(config: dict[str, Any]) -> bool:
    """Whether every application of a Serve config requires a key."""
    applications = config.get("applications") or []
    return bool(applications) and all(
        each.get("import_path") == IMPORT_PATH and _access(each).get("keys") for each in applications
    )


def check_exposure(config: dict[str, Any], without_keys: bool, tls: bool) -> None:
    """Check that only those can reach the service who may; turn gRPC reflection off where keys are required.

    gRPC listens where the config has HTTP listen.

    Raises:
        ScriptError: others can reach it, and an application requires no key, or lets anyone unload its members.
    """
    if has_keys(config):
        # Reflection is answered without a key.
        config["grpc_options"] = {**(config.get("grpc_options") or {}), "enable_reflection": False}
    host = config["http_options"]["host"]
    check_keys(config, host, without_keys)
    if is_loopback(host):
        return
    print(OTHERS, flush=True)
    if not tls:
        print(UNENCRYPTED, flush=True)


def check_keys(config: dict[str, Any], host: str, without_keys: bool) -> None:
    """Check that a server which listens on a host may serve what a config has.

    Raises:
        ScriptError: others can reach it, and an application requires no key, or lets anyone unload its members.
    """
    if is_loopback(host):
        return
    if not has_keys(config) and not without_keys:
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and it requires no key. Make a key "
            "(ensemble keys add NAME --file FILE) and name the file in args (access: {keys: FILE}); or, if "
            "anyone may use the service, start it by ensemble serve --without-keys"
        )
    if any(_access(application).get("operators") == "anyone" for application in config.get("applications") or []):
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and by access.operators anyone may load "
            "and unload members. Name a file of keys (access: {keys: FILE}), and in operators those keys that may"
        )


def _access(application: dict[str, Any]) -> dict[str, Any]:
    access = (application.get("args") or {}).get("access")
    # What is no mapping is refused with the other arguments.
    return access if isinstance(access, dict) else {}

"""Who could reach the service, other machines only with keys or by a flag; and the certificate and key of TLS."""

import os
import ssl
from itertools import chain
from pathlib import Path
from typing import Any

from deployments.contract.hosts import is_loopback
from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError

UNENCRYPTED = "warning: what clients send, their keys too, travels unencrypted; docs/security.md says how to have TLS"
OTHERS = "warning: Serve's own ports can be reached too, in the clear; docs/security.md has rules for a firewall"

# The environment's names of the certificate and the key with which HAProxy terminates TLS, for HTTP and gRPC.
CERTIFICATE, CERTIFICATE_KEY = "ENSEMBLE_TLS_CERTIFICATE", "ENSEMBLE_TLS_KEY"
# Who has a right by a field of `access` that a feature adds, where there are no keys.
ANYONE = "anyone"
BY_SERVE = ("ssl_certfile", "ssl_keyfile")


def has_keys(config: dict[str, Any]) -> bool:
    """Tell whether every application of a Serve config requires a key."""
    applications = config.get("applications") or []
    return bool(applications) and all(
        each.get("import_path") == IMPORT_PATH and _access(each).get("keys") for each in applications
    )


def check_exposure(config: dict[str, Any], without_keys: bool, tls: bool) -> None:
    """Check that only those can reach the service who may; turn gRPC reflection off where keys are required.

    gRPC listens where the config has HTTP listen.

    Raises:
        ScriptError: others can reach it, and an application requires no key, or lets anyone change it.
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
    """Check that a server which listens on a host may serve a config.

    Raises:
        ScriptError: others can reach it, and an application requires no key, or lets anyone change it.
    """
    if is_loopback(host):
        return
    if not has_keys(config) and not without_keys:
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and it requires no key. Make a key "
            "(ensemble keys add NAME --file FILE) and name the file in args (access: {keys: FILE}); or, if "
            "anyone may use the service, start it by ensemble serve --without-keys"
        )
    rights = (_access(application).items() for application in config.get("applications") or [])
    if opened := [name for name, value in chain.from_iterable(rights) if value == ANYONE]:
        raise ScriptError(
            f"http_options.host is {host}: other machines reach the service, and access.{opened[0]} lets anyone change "
            f"it. Name a file of keys (access: {{keys: FILE}}), and in {opened[0]} those keys that may"
        )


def _access(application: dict[str, Any]) -> dict[str, Any]:
    access = (application.get("args") or {}).get("access")
    # What is no mapping is refused with the other arguments.
    return access if isinstance(access, dict) else {}


def certificate_named(config: dict[str, Any]) -> tuple[Path, Path] | None:
    """Check a Serve config's certificate and key and return their absolute paths; None where there is to be no TLS.

    Raises:
        ScriptError: HAProxy can't use them; the message says why.
    """
    if any(config.get("http_options", {}).get(name) for name in BY_SERVE):
        raise ScriptError(
            f"http_options.ssl_certfile is for Serve's own proxy, and HAProxy is in front; set {CERTIFICATE} "
            f"and {CERTIFICATE_KEY} in the environment instead, for HTTP and gRPC alike"
        )
    given = {name: Path(os.environ[name]).absolute() for name in (CERTIFICATE, CERTIFICATE_KEY) if os.environ.get(name)}
    if not given:
        return None
    if missing := sorted({CERTIFICATE, CERTIFICATE_KEY} - set(given)):
        raise ScriptError(f"TLS needs {missing[0]} too, the path of a PEM file")
    check_certificate(given[CERTIFICATE], given[CERTIFICATE_KEY])
    return given[CERTIFICATE], given[CERTIFICATE_KEY]


def check_certificate(file: Path, key: Path) -> None:
    """Raise ScriptError unless HAProxy could use a certificate and its key."""
    for path, name in ((file, CERTIFICATE), (key, CERTIFICATE_KEY)):
        if not os.access(path, os.R_OK):
            raise ScriptError(f"{name}: {path} can't be read")
    try:
        # Without this OpenSSL would ask the terminal for a password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key, password=str)
    except (ssl.SSLError, ValueError) as err:
        raise ScriptError(f"{file} and {key} are no certificate with its key, both PEM, unencrypted: {err}") from err

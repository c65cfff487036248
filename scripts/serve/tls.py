"""TLS for HTTP and gRPC: it ends at HAProxy, with a certificate and a key that the environment names."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError
from scripts.serve.launcher import BINARY, CERTIFICATE, COMMAND, KEY

HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
BY_SERVE = ("ssl_certfile", "ssl_keyfile")


def certificate(config: dict[str, Any]) -> Path | None:
    """The certificate that is served with, if TLS is asked for; checked, and both paths absolute from here on.

    Args:
        config: a Serve config.

    Raises:
        ScriptError: it can't be served with; the message says why.
    """
    if any(config.get("http_options", {}).get(name) for name in BY_SERVE):
        raise ScriptError(
            f"http_options.ssl_certfile would have replicas speak TLS behind a HAProxy that doesn't; set {CERTIFICATE} "
            f"and {KEY} in the environment instead, for HTTP and gRPC alike"
        )
    named = {name: os.environ[name] for name in (CERTIFICATE, KEY) if os.environ.get(name)}
    if not named:
        return None
    if missing := sorted({CERTIFICATE, KEY} - set(named)):
        raise ScriptError(f"TLS needs {missing[0]} too, the path of a PEM file")
    if os.environ.get(HAPROXY) != "1":
        raise ScriptError(f"TLS ends at HAProxy, which {HAPROXY} turns off; Serve's own proxies have none for gRPC")
    if Path(os.environ.get(BINARY, "")).name != COMMAND:
        raise ScriptError(
            f"TLS needs HAProxy's launcher, {COMMAND}; install this package anew (make serve), unset {BINARY}"
        )
    for name, path in named.items():
        os.environ[name] = str(Path(path).absolute())
    _load(Path(os.environ[CERTIFICATE]), Path(os.environ[KEY]))
    return Path(os.environ[CERTIFICATE])


def _load(file: Path, key: Path) -> None:
    """Raise ScriptError unless HAProxy could serve with a certificate and its key."""
    for path, name in ((file, CERTIFICATE), (key, KEY)):
        if not os.access(path, os.R_OK):
            raise ScriptError(f"{name}: {path} can't be read")
    try:
        # Asked for a password, OpenSSL would ask the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key, password=str)
    except (ssl.SSLError, ValueError) as err:
        raise ScriptError(f"{file} and {key} are no certificate with its key, both PEM, unencrypted: {err}") from err

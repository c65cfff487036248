"""The certificate and the key with which HAProxy terminates TLS for HTTP and gRPC; the environment names them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError

CERTIFICATE, KEY = "ENSEMBLE_TLS_CERTIFICATE", "ENSEMBLE_TLS_KEY"
BY_SERVE = ("ssl_certfile", "ssl_keyfile")


def named(config: dict[str, Any]) -> tuple[Path, Path] | None:
    """The absolute paths of a Serve config's certificate and key, checked; None where there is to be no TLS.

    Raises:
        ScriptError: HAProxy can't use them; the message says why.
    """
    if any(config.get("http_options", {}).get(name) for name in BY_SERVE):
        raise ScriptError(
            f"http_options.ssl_certfile is for Serve's own proxy, and HAProxy is in front; set {CERTIFICATE} "
            f"and {KEY} in the environment instead, for HTTP and gRPC alike"
        )
    given = {name: Path(os.environ[name]).absolute() for name in (CERTIFICATE, KEY) if os.environ.get(name)}
    if not given:
        return None
    if missing := sorted({CERTIFICATE, KEY} - set(given)):
        raise ScriptError(f"TLS needs {missing[0]} too, the path of a PEM file")
    check(given[CERTIFICATE], given[KEY])
    return given[CERTIFICATE], given[KEY]


def check(file: Path, key: Path) -> None:
    """Raise ScriptError unless HAProxy could use a certificate and its key."""
    for path, name in ((file, CERTIFICATE), (key, KEY)):
        if not os.access(path, os.R_OK):
            raise ScriptError(f"{name}: {path} can't be read")
    try:
        # Without this OpenSSL would ask the terminal for a password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key, password=str)
    except (ssl.SSLError, ValueError) as err:
        raise ScriptError(f"{file} and {key} are no certificate with its key, both PEM, unencrypted: {err}") from err

"""The credentials that a remote server requires: certificates, and a bearer token."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.remote.errors import ServerError

if TYPE_CHECKING:
    from deployments.remote.config import RemoteConfig

MAX_TOKEN_LENGTH = 16 * 1024


def authorization(token_file: Path | None) -> dict[str, str]:
    """Return the HTTP header, or gRPC metadata, of a call; each call reads the token, because the file may change.

    Raises:
        ServerError: the token can't be read.
    """
    if token_file is None:
        return {}
    try:
        token = token_file.read_text(encoding="ascii").strip()
        if not token or len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
            raise ValueError("the file does not hold a token on one line")
    except (OSError, ValueError) as err:
        # The error's text may quote the token.
        raise ServerError(f"can't read the token in {token_file} ({type(err).__name__})") from None
    return {"authorization": f"Bearer {token}"}


def tls(config: RemoteConfig) -> ssl.SSLContext:
    """Make the TLS context of an HTTP client; raises ServerError if a file can't be read."""
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.cert_file is not None:
            # Without a password, OpenSSL would ask the terminal for that of an encrypted key, and wait.
            context.load_cert_chain(config.cert_file, config.key_file, password="")
    except (OSError, ssl.SSLError) as err:
        raise ServerError(f"can't read the certificates, or the key is encrypted: {err}") from err
    return context


def read(file: Path | None) -> bytes | None:
    """Return the bytes of a file; raises ServerError if the file can't be read."""
    try:
        return None if file is None else file.read_bytes()
    except OSError as err:
        raise ServerError(f"can't read {file}: {err}") from err

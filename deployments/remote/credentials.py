"""What lets us in: certificates, and a bearer token that may change while we run."""

from __future__ import annotations

import ssl
from pathlib import Path

from deployments.remote.failures import Failed
from deployments.remote.settings import RemoteConfig

LONGEST_TOKEN = 16 * 1024


class Token:
    """A bearer token in a file, read again when the file changes."""

    def __init__(self, file: Path | None) -> None:
        """Set the file; None for no token."""
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._header: dict[str, str] = {}

    def header(self) -> dict[str, str]:
        """The header, or gRPC's metadata, of a call; raises Failed if the token can't be read."""
        if self._file is None:
            return {}
        try:
            status = self._file.stat()
            stamp = status.st_mtime_ns, status.st_ino
            if stamp != self._stamp:
                text = self._file.read_text(encoding="ascii").strip()
                if not text or len(text) > LONGEST_TOKEN or not text.isprintable():
                    raise ValueError("it holds no token of one line")
                self._header, self._stamp = {"authorization": f"Bearer {text}"}, stamp
        except (OSError, ValueError) as err:
            # Without the text: what is in it is secret.
            raise Failed(f"can't read the token in {self._file} ({type(err).__name__})") from None
        return self._header


def tls(config: RemoteConfig) -> ssl.SSLContext:
    """The TLS context of a HTTP client; raises Failed if a file can't be read."""
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.cert_file is not None:
            context.load_cert_chain(config.cert_file, config.key_file)
    except (OSError, ssl.SSLError) as err:
        raise Failed(f"can't read the certificates: {err}") from err
    return context


def contents(file: Path | None) -> bytes | None:
    """The bytes of a file; raises Failed if it can't be read."""
    try:
        return None if file is None else file.read_bytes()
    except OSError as err:
        raise Failed(f"can't read {file}: {err}") from err

"""The URL of a server."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

# The port of a URL without one, by the schemes of servers.
DEFAULT_PORTS = {"http": 80, "https": 443, "grpc": 9000, "grpcs": 443}


def parsed(url: str) -> SplitResult:
    """Split a server's URL; raise ValueError if it is no URL of a server, or of another scheme.

    The message does not quote the URL, or its port, which may be a password: servers log it.
    """
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in DEFAULT_PORTS and _is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError("this is no URL of a server, such as http://127.0.0.1:8000 or grpc://127.0.0.1:9000")
    return parts


def _is_host(name: str) -> bool:
    """Tell whether a name can be looked up: not `a..b`."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def address(parts: SplitResult) -> tuple[str, int]:
    """Host and port of a server's URL."""
    return parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]

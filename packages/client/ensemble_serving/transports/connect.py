"""The transport to a URL."""

from __future__ import annotations

from pathlib import Path

from ensemble_serving.transports.grpc import grpc
from ensemble_serving.transports.http import http
from ensemble_serving.transports.request import Headers, Transport
from ensemble_serving.url import parsed


def connect(
    url: str,
    *,
    connections: int | None = None,
    timeout_s: float = 60.0,
    headers: Headers = (),
    ca_file: Path | None = None,
) -> Transport:
    """Make a transport to a server; it connects when the first request is sent.

    Args:
        url: `http://host:port`, `https://...`, `grpc://host:port` or `grpcs://...`.
        connections: the most of them; further requests wait for one. Over HTTP by default 1,000, each with one request
            at a time; over gRPC 1, with any number of requests.
        timeout_s: of a request, seconds.
        headers: of every request, names in lower case.
        ca_file: certificates to trust, PEM; default: the system's.

    Raises:
        ValueError: the URL is none of these.
    """
    parts = parsed(url)
    make, most = (grpc, 1) if parts.scheme.startswith("grpc") else (http, 1000)
    return make(parts, connections or most, timeout_s, headers, ca_file)

"""The transport to a URL, and a single request."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from ensemble_serving.transports.http import Http
from ensemble_serving.transports.request import Headers, NoResponse, Request, Response, Transport
from ensemble_serving.transports.server import Server
from ensemble_serving.url import parsed


def connect(
    url: str,
    *,
    connections: int | None = None,
    timeout_s: float = 60.0,
    headers: Headers = (),
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    key_file: Path | None = None,
    address: str | None = None,
    most_bytes: int | None = None,
) -> Transport:
    """Make a transport to a server; it connects when the first request is sent.

    Args:
        url: `http://host:port`, `https://...`, `grpc://host:port` or `grpcs://...`.
        connections: the most of them; further requests wait for one. Over HTTP by default 1,000, each with one request
            at a time; over gRPC 1, with any number of requests.
        timeout_s: of a request, seconds.
        headers: of every request, names in lower case.
        ca_file: certificates to trust, PEM; default: the system's.
        cert_file: this client's certificate, PEM.
        key_file: the key of `cert_file`, PEM.
        address: to connect to instead of the URL's host.
        most_bytes: of a response; default: any number.

    Raises:
        ValueError: the URL is none of these.
        OSError: a file of certificates can't be read.
    """
    parts = parsed(url)
    is_grpc = parts.scheme.startswith("grpc")
    most = connections or (1 if is_grpc else 1000)
    server = Server(parts, most, timeout_s, headers, ca_file, cert_file, key_file, address, most_bytes)
    if is_grpc:
        # Imported where it is used: clients over HTTP start sooner.
        from ensemble_serving.transports.grpc import Grpc

        return Grpc(server)
    return Http(server)


def once(url: str, request: Request, *, timeout_s: float = 60.0, ca_file: Path | None = None) -> Response:
    """Send a request on a connection of its own and return the response.

    Args:
        url: of the server.
        request: that is sent.
        timeout_s: see `connect`.
        ca_file: see `connect`.

    Raises:
        NoResponse: there is none.
    """

    async def send() -> Response:
        transport = connect(url, timeout_s=timeout_s, ca_file=ca_file)
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(send())


def is_ready(url: str) -> bool:
    """Tell whether the model server at this root reports by the Open Inference Protocol that it is ready."""
    with suppress(NoResponse):
        return once(url, Request("/v2/health/ready", method="GET"), timeout_s=5.0).ok
    return False

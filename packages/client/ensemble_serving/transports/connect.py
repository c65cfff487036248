"""The transport to a server, and a single request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ensemble_serving.transports.http import Http
from ensemble_serving.transports.request import Request, Response, Transport
from ensemble_serving.transports.server import Server


def connect(server: Server) -> Transport:
    """Make a transport to a server; it connects when the first request is sent.

    Raises:
        OSError: a file of certificates can't be read.
    """
    if not server.is_grpc:
        return Http(server)
    # Imported where it is used: clients over HTTP start sooner.
    from ensemble_serving.transports.grpc import Grpc

    return Grpc(server)


def once(url: str, request: Request, *, timeout_s: float = 60.0, ca_file: Path | None = None) -> Response:
    """Send a request on a connection of its own and return the response; raise NoResponse if there is none."""

    async def send() -> Response:
        transport = connect(Server(url, timeout_s=timeout_s, ca_file=ca_file))
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(send())

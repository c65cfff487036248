"""The transport to a server."""

from __future__ import annotations

from ensemble_serving.transports.http import Http
from ensemble_serving.transports.request import Transport
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

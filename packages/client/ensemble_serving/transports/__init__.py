"""How a request travels to a server and its response back: over HTTP, or over gRPC, by the same interface."""

from ensemble_serving.transports.connect import connect, once
from ensemble_serving.transports.request import (
    NoConnection,
    NoResponse,
    Request,
    Response,
    ResponseTimeout,
    ResponseTooLarge,
    Transport,
)
from ensemble_serving.transports.server import Server

__all__ = [
    "NoConnection",
    "NoResponse",
    "Request",
    "Response",
    "ResponseTimeout",
    "ResponseTooLarge",
    "Server",
    "Transport",
    "connect",
    "once",
]

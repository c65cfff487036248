"""How a request travels to a server and its response back: over HTTP, or over gRPC, by the same interface."""

from ensemble_serving.transports.connect import connect
from ensemble_serving.transports.once import is_ready, once
from ensemble_serving.transports.request import NoConnection, NoResponse, Request, Response, ResponseTimeout, Transport

__all__ = [
    "NoConnection",
    "NoResponse",
    "Request",
    "Response",
    "ResponseTimeout",
    "Transport",
    "connect",
    "is_ready",
    "once",
]

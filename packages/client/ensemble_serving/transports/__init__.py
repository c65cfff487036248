"""How a request travels to a server and its response back: over HTTP, or over gRPC, by the same interface."""

from ensemble_serving.transports.connect import connect, is_ready, once
from ensemble_serving.transports.request import (
    NoConnection,
    NoResponse,
    Request,
    Response,
    ResponseTimeout,
    ResponseTooLarge,
    Transport,
)

__all__ = [
    "NoConnection",
    "NoResponse",
    "Request",
    "Response",
    "ResponseTimeout",
    "ResponseTooLarge",
    "Transport",
    "connect",
    "is_ready",
    "once",
]

"""A gRPC method: its handler, and what the server does before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message

from deployments.ingress.grpc.wire import max_fields
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Call


class Context(Protocol):
    """The context of a call: `deployments.ingress.listeners.grpc_call.GrpcCall`, or that of Serve's gRPC server."""

    def invocation_metadata(self) -> Any:
        """Return the client's metadata: pairs of a name and a value."""

    def set_code(self, code: Any) -> None:
        """Set the status."""

    def set_details(self, details: str) -> None:
        """Set the status' message."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the trailers."""


Handler = Callable[[Any, Call], Awaitable[Message]]
# By `<service>/<method>`.
Calls = dict[str, "Rpc"]


@dataclass(frozen=True)
class Rpc:
    """A method.

    Attributes:
        handler: answers a request; every `EnsembleError` that it raises is answered as a status.
        observed: whether its calls are traced and counted.
        is_open: whether it needs no key where others do.
        fields: how many fields a request may have.
    """

    handler: Handler
    observed: bool = False
    is_open: bool = False
    fields: Callable[[IngressSettings], int] = lambda settings: max_fields(settings.max_parts)

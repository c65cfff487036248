"""What a feature adds to the ingress: routes, gRPC methods, figures, headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from deployments.reconfigure import Section

if TYPE_CHECKING:
    from deployments.ingress.grpc.calls import Calls
    from deployments.ingress.http.routes import Routes
    from deployments.ingress.service import Service


class Report(NamedTuple):
    """Figures for `/stats`.

    Attributes:
        model: the type of what `read` returns, for the OpenAPI document.
        read: returns the figures since the start.
    """

    model: Any
    read: Callable[[], Any]


class Extension:
    """Adds nothing: a feature overrides what it adds.

    Attributes:
        headers: the headers of a request that it reads, in small letters.
        reports: figures by the name of their field in `/stats`.
        announces: the extensions of the Open Inference Protocol that it serves.
        not_serving: the full names of gRPC services that refuse every call, because it is off.
        live: the sections of `user_config` that it reads while it serves.
        handles: methods for callers with a handle, by name.
    """

    headers: Sequence[str] = ()
    reports: Mapping[str, Report] = {}
    announces: Sequence[str] = ()
    not_serving: Collection[str] = ()
    live: Mapping[str, Section] = {}
    handles: Mapping[str, Callable[..., Awaitable[Any]]] = {}

    @property
    def unloaded(self) -> Collection[str]:
        """The members that were unloaded, and so are not called."""
        return ()

    def routes(self, service: Service) -> Routes:
        """Return HTTP routes by path."""
        return {}

    def calls(self, service: Service) -> Calls:
        """Return the gRPC methods of a protocol's services, by `<service>/<method>`."""
        return {}

    async def check_health(self) -> None:
        """Raise if it can't work any more; Serve calls this every few seconds."""

"""What a feature serves beside the graph: HTTP paths, gRPC methods, methods of the handle, and figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from deployments.ingress.protocol import Service
    from deployments.ingress.routes import Calls, Routes
    from deployments.reconfigure import Section


class Report(NamedTuple):
    """Figures for `/stats`.

    Attributes:
        model: the type of what `read` returns, for the OpenAPI document.
        read: returns the figures since the start.
    """

    model: Any
    read: Callable[[], Any]


@dataclass(frozen=True)
class Served:
    """What a feature serves.

    Attributes:
        routes: HTTP routes by path.
        calls: the gRPC methods of a protocol's services, by `<service>/<method>`.
        handles: methods for callers with a handle, by name.
        headers: the headers of a request that it reads, in small letters.
        announces: the extensions of the Open Inference Protocol that it serves.
        not_serving: the full names of gRPC services that refuse every call, because it is off.
    """

    routes: Routes = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    handles: Mapping[str, Callable[..., Awaitable[Any]]] = field(default_factory=dict)
    headers: Sequence[str] = ()
    announces: Sequence[str] = ()
    not_serving: Collection[str] = ()


class Serves:
    """The base of features, as far as the ingress knows them.

    Attributes:
        live: what the sections of `user_config` change while it serves, by section, or by section and name.
        reports: figures by the name of their field in `/stats`.
    """

    live: Mapping[str, Section] = {}
    reports: Mapping[str, Report] = {}

    def serve(self, service: Service) -> Served:
        """Return what it serves; called once, when the ingress is complete."""
        return Served()

"""Who serves what: protocols by which clients reach the application, features, and the `Service` that they share.

Protocols are entry points, or import strings in the field `protocols` of the YAML; each process resolves them. Whoever
reads a configuration imports this module, so it imports neither Ray nor the ingress.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from deployments.contract.errors import ConfigurationError, EnsembleError, NotFound, NotReady
from deployments.contract.sections import SectionOwner
from deployments.entry_points import PROTOCOLS, find_class, names
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from deployments.ingress.access import Access
    from deployments.ingress.ingress import Ingress
    from deployments.ingress.routes import Calls, Routes
    from deployments.ingress.single_member import MemberModelInfo
    from deployments.reconfigure import Section

# The functions that `grpc_servicer_functions` may list: one for each protocol, by its name, and one for all.
FUNCTION = "deployments.protocol.services.add_{}"
EVERY = FUNCTION.format("all")
V = TypeVar("V")


class TensorStore:
    """Where clients keep tensors outside their requests; this one is nowhere, and another one overrides all methods."""

    def place(self, parameters: Mapping[str, Any]) -> Any:
        """Return the place that a tensor's parameters name, None for none; raises EnsembleError as each method may."""
        if "shared_memory_region" in parameters:
            raise NotFound("no installed protocol keeps tensors in shared memory")

    def read(self, place: Any, limit: int) -> bytes:
        """Read a tensor of at most `limit` bytes."""
        raise NotImplementedError

    def check(self, place: Any) -> None:
        """Raise as `write` does if a place can't be written."""

    def write(self, place: Any, raw: bytes) -> dict[str, Any]:
        """Write a tensor; return the parameters that name its place."""
        raise NotImplementedError


class Protocol(SectionOwner):
    """Serves nothing: a protocol overrides these methods.

    The attributes are read where HAProxy is started, too: its configuration is made of them.

    Attributes:
        prefix: the beginning of its HTTP paths. Errors of paths below it have the protocol's style, also the error that
            HAProxy answers while there is no application. Empty for a protocol whose errors have the default style.
        style: the form of errors.
        services: its gRPC services.
        behind_serve: whether Serve's proxy can serve them. That proxy finds a method by its name alone, so this is
            false where another protocol has a method of the same name.
        large: the methods whose messages carry images or tensors, `<service>/<method>`; others have 256 KiB at most.
        slow: beginnings of `<service>/<method>` of methods that may take ten minutes.
        streams: methods to which clients would stream, which HAProxy refuses at once, and what to call instead.
    """

    prefix = ""
    style: ErrorStyle = AS_OBJECT
    services: Sequence[ServiceDescriptor] = ()
    behind_serve = True
    large: Sequence[str] = ()
    slow: Sequence[str] = ()
    streams: ClassVar[Mapping[str, str]] = {}

    def routes(self, service: Service) -> Routes:
        """Return its HTTP paths, of which the OpenAPI document is made, too."""
        return {}

    def calls(self, service: Service) -> Calls:
        """Return its gRPC methods, by `<service>/<method>`."""
        return {}

    def not_found(self, path: str) -> NotFound:
        """Return the error of an unknown path below `prefix`."""
        return NotFound(f"there is no {path}; see /docs for what there is")

    def announces(self, service: Service) -> Sequence[str]:
        """Return the extensions of the Open Inference Protocol that it serves."""
        return ()

    def tensor_store(self, service: Service) -> TensorStore | None:
        """Return where clients may keep tensors of the Open Inference Protocol, if it brings such a place."""
        return None


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
        live: what the sections of `user_config` change while it serves, by section, or by section and name.
    """

    routes: Routes = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    handles: Mapping[str, Callable[..., Awaitable[Any]]] = field(default_factory=dict)
    headers: Sequence[str] = ()
    announces: Sequence[str] = ()
    not_serving: Collection[str] = ()
    live: Mapping[str, Section] = field(default_factory=dict)


class Serves:
    """The base of features, as far as the ingress knows them.

    Attributes:
        reports: figures by the name of their field in `/stats`.
    """

    reports: Mapping[str, Report] = {}

    def serve(self, service: Service) -> Served:
        """Return what it serves; called once, when the ingress is complete."""
        return Served()


def resolve(named: Iterable[str] = ()) -> tuple[type[Protocol], ...]:
    """List the installed protocols, and the protocols that are named as `module:Class`.

    Raises:
        ValueError: one can't be imported, or is no protocol.
    """
    return tuple(dict.fromkeys(find_class(PROTOCOLS, name, Protocol) for name in (*names(PROTOCOLS), *named)))


def functions() -> dict[str, tuple[type[Protocol], ...]]:
    """List the functions that `grpc_servicer_functions` may name, and the protocols of each."""
    installed = {name: find_class(PROTOCOLS, name, Protocol) for name in names(PROTOCOLS)}
    found = {FUNCTION.format(name): (each,) for name, each in installed.items() if each.services}
    return {EVERY: resolve(), **found}


def services(listed: Collection[str] | None, named: Iterable[str] = ()) -> tuple[ServiceDescriptor, ...]:
    """List the gRPC services that clients reach.

    Args:
        listed: `grpc_servicer_functions`; None for every service.
        named: the protocols that the configuration names, whose services need not be listed.
    """
    chosen = resolve(named)
    if listed is not None:
        known = functions()
        wanted = {each for name in listed for each in known.get(name, ())}
        wanted |= {find_class(PROTOCOLS, name, Protocol) for name in named}
        chosen = tuple(each for each in chosen if each in wanted)
    return tuple(service for each in chosen for service in each.services)


def merged(tables: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """Join the tables of protocols and features.

    Raises:
        ConfigurationError: two of them have the same path.
    """
    whole: dict[str, V] = {}
    for table in tables:
        if twice := sorted(whole.keys() & table.keys()):
            raise ConfigurationError(f"two protocols or features bring {twice[0]}; remove one of them")
        whole |= table
    return whole


@dataclass(frozen=True)
class Service:
    """What the protocols share.

    Attributes:
        ingress: where images go.
        labels: the classes' names, in order of index.
        is_ready: whether every member has answered since the start, or the quorum goes on without one that is remote.
        access: checks API keys; None where none are needed.
        missing: the members that have not answered, and the codes of their errors or why.
        members: by name, for each member that is a model of its own, the ingress of its pixels and its description.
        protocols: how clients reach the application; default: every installed one.
        application: the name of the Serve application.
        features: the application's features.
        left_out: by name, why each member that is left out is not called.
        is_local: whether the server listens on loopback alone.
        max_image_bytes: the most of an image, which is read no further.
        versions: by name, the version that each member serves, as far as this process knows.
        grpc_services: the full names of the gRPC services that clients reach.
    """

    ingress: Ingress
    labels: Sequence[str]
    is_ready: Callable[[], bool]
    access: Access | None = None
    missing: Callable[[], Mapping[str, str]] = field(default=dict)
    members: Mapping[str, tuple[Ingress, MemberModelInfo]] = field(default_factory=dict)
    protocols: Sequence[Protocol] = field(default_factory=lambda: tuple(each() for each in resolve()))
    application: str = ""
    features: Sequence[Serves] = ()
    left_out: Mapping[str, EnsembleError] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    is_local: bool = False
    grpc_services: Sequence[str] = field(default_factory=lambda: [each.full_name for each in services(None)])
    max_image_bytes: int = sys.maxsize

    @cached_property
    def served(self) -> Sequence[Served]:
        """What the features serve."""
        return tuple(feature.serve(self) for feature in self.features)

    @cached_property
    def routes(self) -> Routes:
        """The HTTP paths of protocols and of features, of which the OpenAPI document has those with a summary."""
        return merged([*(each.routes(self) for each in self.protocols), *(each.routes for each in self.served)])

    @cached_property
    def calls(self) -> Calls:
        """The gRPC methods of protocols and of features, by `<service>/<method>`."""
        return merged([*(each.calls(self) for each in self.protocols), *(each.calls for each in self.served)])

    @property
    def handles(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """The methods of features for callers with a handle, by name."""
        return {name: method for served in self.served for name, method in served.handles.items()}

    @property
    def live(self) -> Mapping[str, Section]:
        """What the features' sections of `user_config` change, by section."""
        return {name: section for served in self.served for name, section in served.live.items()}

    @property
    def not_serving(self) -> Collection[str]:
        """The gRPC services that refuse every call, because a feature is off."""
        return {name for served in self.served for name in served.not_serving}

    @cached_property
    def tensor_store(self) -> TensorStore:
        """Where clients may keep tensors outside their requests."""
        found = (each.tensor_store(self) for each in self.protocols)
        return next((store for store in found if store is not None), TensorStore())

    @property
    def headers(self) -> Sequence[str]:
        """The headers of a request that a feature reads, in small letters."""
        return tuple(dict.fromkeys(name for served in self.served for name in served.headers))

    def check_ready(self, name: str = "") -> None:
        """Raise NotReady until every member has answered, and its own error for a member that is left out."""
        if name in self.left_out:
            raise self.left_out[name].with_traceback(None)
        if not self.is_ready():
            reasons = "; ".join(f"{name}: {why}" for name, why in self.missing().items())
            raise NotReady(f"not every member has answered yet{f' ({reasons})' if reasons else ''}; try again later")

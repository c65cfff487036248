"""A protocol: HTTP paths and gRPC services by which clients reach the application.

Protocols are entry points, or import strings in the field `protocols` of the YAML; each process resolves them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from deployments.contract.errors import NotFound
from deployments.doors import PROTOCOLS, absent, find_class, names
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from deployments.ingress.grpc.calls import Calls
    from deployments.ingress.http.routes import Routes
    from deployments.ingress.service import Service

# The functions that `grpc_servicer_functions` may list: one for each protocol, by its name, and one for all.
FUNCTION = "deployments.protocol.services.add_{}"
EVERY = FUNCTION.format("all")
# As files of 0.1.0 name it.
GENERATED = "deployments.protocol.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class TensorStore:
    """Where clients keep tensors outside their requests; this one is nowhere, and another one overrides all methods."""

    def place(self, parameters: Mapping[str, Any]) -> Any:
        """Return the place that a tensor's parameters name, None for none; raises EnsembleError as each method may."""
        if "shared_memory_region" in parameters:
            raise NotFound(absent("shared_memory"))

    def read(self, place: Any, limit: int) -> bytes:
        """Read a tensor of at most `limit` bytes."""
        raise NotImplementedError

    def check(self, place: Any) -> None:
        """Raise as `write` does if a place can't be written."""

    def write(self, place: Any, raw: bytes) -> dict[str, Any]:
        """Write a tensor; return the parameters that name its place."""
        raise NotImplementedError


class Protocol:
    """Serves nothing: a protocol overrides what it has.

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


def resolve(named: Iterable[str] = ()) -> tuple[type[Protocol], ...]:
    """List the installed protocols, and those that are named as `module:Class`.

    Raises:
        ValueError: one can't be imported, or is no protocol.
    """
    return tuple(dict.fromkeys(find_class(PROTOCOLS, name, Protocol) for name in (*names(PROTOCOLS), *named)))


def functions() -> dict[str, tuple[type[Protocol], ...]]:
    """List the functions that `grpc_servicer_functions` may name, and the protocols of each."""
    installed = {name: find_class(PROTOCOLS, name, Protocol) for name in names(PROTOCOLS)}
    found = {FUNCTION.format(name): (each,) for name, each in installed.items() if each.services}
    return {EVERY: resolve(), **found, GENERATED: (installed["open_inference"],)}


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

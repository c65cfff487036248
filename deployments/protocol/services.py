"""The functions that `grpc_servicer_functions` in the YAML names: `add_<protocol>` for each protocol, and `add_all`.

Serve's proxy calls them. They do the same as the functions `add_...Servicer_to_server` of generated code, except that
the servicer gets requests as bytes: it checks them before it decodes them, and answers requests that can't be decoded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from deployments.entry_points import not_installed
from deployments.ingress.protocol import Protocol, functions
from ensemble_serving.protocol.pool import add_to_default_pool


def __getattr__(name: str) -> Any:
    if (protocols := functions().get(f"{__name__}.{name}")) is not None:
        return partial(_add, protocols)
    raise AttributeError(f"no installed protocol has a function {name}{not_installed()}")


def _add(protocols: tuple[type[Protocol], ...], servicer: Any, server: Any) -> None:
    """Add to Serve's server the services that its proxy can serve."""
    add_to_default_pool()
    for service in (service for each in protocols if each.behind_serve for service in each.services):
        handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_registered_method_handlers(service.full_name, handlers)


def _handler(method: MethodDescriptor, answer: Callable[..., Any]) -> Any:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    answered = GetMessageClass(method.output_type)
    return make(answer, response_serializer=answered.SerializeToString)

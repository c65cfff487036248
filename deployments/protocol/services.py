"""The gRPC services of the application; `grpc_servicer_functions` in the YAML names the function of each.

These do the same as the functions `add_...Servicer_to_server` of generated code, except that the servicer gets requests
as bytes: it checks them before it decodes them, and answers those that can't be decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from deployments.protocol import feedback_pb2, seldon_pb2, tensorflow_serving_pb2
from deployments.protocol.functions import SERVED_BY
from ensemble_serving.protocol import inference_pb2
from ensemble_serving.protocol.pool import add_to_default_pool

OPEN_INFERENCE: ServiceDescriptor = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
HEALTH: ServiceDescriptor = health_pb2.DESCRIPTOR.services_by_name["Health"]
PREDICTION: ServiceDescriptor = tensorflow_serving_pb2.DESCRIPTOR.services_by_name["PredictionService"]
MODEL: ServiceDescriptor = tensorflow_serving_pb2.DESCRIPTOR.services_by_name["ModelService"]
FEEDBACK: ServiceDescriptor = feedback_pb2.DESCRIPTOR.services_by_name["FeedbackService"]
SELDON: ServiceDescriptor = seldon_pb2.DESCRIPTOR.services_by_name["Seldon"]
# Serve's proxy calls a method by its name alone, and Seldon's `Predict` is named as TensorFlow Serving's is.
BY_SERVE = (OPEN_INFERENCE, PREDICTION, MODEL, HEALTH, FEEDBACK)
SERVICES = (*BY_SERVE, SELDON)


def listed(functions: Collection[str] | None) -> tuple[ServiceDescriptor, ...]:
    """The services that `grpc_servicer_functions` stands for; every service where there is no such list."""
    names = {
        name for function in (SERVED_BY if functions is None else functions) for name in SERVED_BY.get(function, ())
    }
    return tuple(service for service in SERVICES if service.full_name in names)


def known_as(method: MethodDescriptor) -> str:
    """The name of a method among those of all services."""
    return f"Seldon{method.name}" if method.containing_service is SELDON else method.name


def types() -> dict[str, tuple[type[Message], type[Message]]]:
    """By the name of each method, as `known_as` has it, the types of its request and of its response."""
    return {
        known_as(method): (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
        for service in SERVICES
        for method in service.methods
    }


def add_open_inference(servicer: Any, server: Any) -> None:
    """Serve the Open Inference Protocol, `inference.GRPCInferenceService`."""
    _add(OPEN_INFERENCE, servicer, server)


def add_tensorflow_serving(servicer: Any, server: Any) -> None:
    """Serve TensorFlow Serving's `PredictionService` and `ModelService`."""
    _add(PREDICTION, servicer, server)
    _add(MODEL, servicer, server)


def add_health(servicer: Any, server: Any) -> None:
    """Serve gRPC's standard health service, `grpc.health.v1.Health`."""
    _add(HEALTH, servicer, server)


def add_feedback(servicer: Any, server: Any) -> None:
    """Serve `ensemble.FeedbackService`, which takes true labels."""
    _add(FEEDBACK, servicer, server)


def add_seldon(servicer: Any, server: Any) -> None:
    """Do nothing: HAProxy forwards to `seldon.protos.Seldon` by this name, and Serve's proxy can't serve it."""


def _add(service: ServiceDescriptor, servicer: Any, server: Any) -> None:
    add_to_default_pool()
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    server.add_registered_method_handlers(service.full_name, handlers)


def _handler(method: MethodDescriptor, answer: Callable[..., Any]) -> Any:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    answered = GetMessageClass(method.output_type)
    return make(answer, response_serializer=answered.SerializeToString)

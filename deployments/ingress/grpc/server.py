"""Dispatches gRPC calls by a table: by the names of `services.known_as`, since Serve tells no more of a path."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from deployments.contract.caller import caller, check_once
from deployments.contract.errors import INTERNAL_HINT, EnsembleError
from deployments.ingress.grpc import health, open_inference, seldon, shared_memory, tensorflow_serving
from deployments.ingress.grpc.calls import Calls, Context
from deployments.ingress.grpc.wire import decoded
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.observe.tracing import Trace
from deployments.protocol.services import BY_SERVE, types

logger = logging.getLogger("ray.serve")

C = TypeVar("C", bound=type)
# Bytes. A message is in memory while its refusal waits for its turn; a larger one is refused at once.
MOST_HELD = 256 * 1024
NO_STREAM = "is not implemented, since the server streams nothing; ask the unary methods"


class GrpcServer:
    """Answers gRPC calls; every error, foreseen or not, is answered as a status."""

    def __init__(self, service: Service) -> None:
        """Set what is served: a protocol is one more entry."""
        self._ingress, self._access, self._headers = service.ingress, service.access, service.headers
        self._types = types()
        self._calls: Calls = open_inference.OpenInference(service).calls() | shared_memory.calls(service)
        self._calls |= tensorflow_serving.TensorFlowServing(service).calls() | seldon.calls(service)
        self._calls |= health.calls(service)
        for extension in service.extensions:
            self._calls |= extension.calls(service)

    async def __call__(self, name: str, body: bytes, context: Context) -> Message:
        """Answer a call of the method of that name; its request is decoded once the caller is known."""
        observed, metadata = self._calls[name].observed, dict(context.invocation_metadata())
        if not observed:
            return await self._answered(name, body, context, metadata, Call(Trace("")))
        # https://opentelemetry.io/docs/specs/semconv/rpc/
        known = {"rpc.system.name": "grpc", "rpc.method": observed}
        known["ensemble.request.id"] = metadata.get("request_id", "")
        with self._ingress.observer.call("grpc", metadata, known) as call:
            call.attributes["rpc.response.status_code"] = grpc.StatusCode.OK.name
            return await self._answered(name, body, context, metadata, call)

    async def _answered(
        self, name: str, body: bytes, context: Context, metadata: Mapping[str, str], call: Call
    ) -> Message:
        try:
            check_once([name for name, _ in context.invocation_metadata()])
            return await self._handled(name, body, metadata, call)
        except EnsembleError as err:
            error = err
        except Exception:
            trace = call.trace.id
            logger.exception("failed on a call of %s; trace %s", name, trace, extra={"trace_ids": [trace]})
            error = EnsembleError(INTERNAL_HINT)
        call.fail(error)
        call.attributes["rpc.response.status_code"] = error.grpc_status
        # Returned, not raised: a client's mistake is not worth a traceback in the log.
        context.set_code(grpc.StatusCode[error.grpc_status])
        context.set_details(f"{error.code}: {error.message}")
        if error.retry_after_s is not None:
            # https://github.com/grpc/proposal/blob/master/A6-client-retries.md
            context.set_trailing_metadata([("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000)))])
        _, response = self._types[name]
        return response()

    async def _handled(self, name: str, body: bytes, metadata: Mapping[str, str], call: Call) -> Message:
        rpc, settings = self._calls[name], self._ingress.settings
        key = ""
        if self._access is not None and not rpc.is_open:
            key = self._access.admit(metadata.get("authorization"))
        call.caller = caller(metadata, key, settings.fair_by, self._headers)
        if rpc.observed and len(body) <= MOST_HELD:
            await self._ingress.capacity.admit(call.caller)
        elif rpc.observed:
            self._ingress.capacity.check(by=call.caller)
        request, _ = self._types[name]
        return await rpc.handler(decoded(body, request, settings.max_request_bytes, rpc.fields(settings)), call)


def answers_grpc(cls: C) -> C:
    """Give a deployment a method for each method of the services, which calls what it has as `grpc`."""
    for service in BY_SERVE:
        for method in service.methods:
            setattr(cls, method.name, _streaming(method.name) if method.server_streaming else _unary(method.name))
    return cls


def _unary(name: str) -> Any:
    async def answer(self: Any, request: bytes, grpc_context: Context) -> Message:
        answered: Message = await self.grpc(name, request, grpc_context)
        return answered

    answer.__name__ = name
    return answer


def _streaming(name: str) -> Any:
    async def answer(self: Any, request: bytes, grpc_context: Context) -> AsyncIterator[Message]:
        grpc_context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        grpc_context.set_details(f"{name} {NO_STREAM}")
        return
        yield

    answer.__name__ = name
    return answer

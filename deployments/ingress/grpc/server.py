"""Dispatches gRPC calls by a table of paths, `<service>/<method>`."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from deployments.contract.errors import INTERNAL_HINT, EnsembleError
from deployments.contract.item import TRACE_ID
from deployments.ingress.grpc.wire import decoded
from deployments.ingress.headers import caller, check_once
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import Answered, Rpc
from deployments.observe.observer import Call, Trace

logger = logging.getLogger("ray.serve")

# The context of a call: `GrpcCall`, or Serve's; both have these methods of gRPC's own.
Context = grpc.ServicerContext
# Answers a call, by `<service>/<method>`, the bytes of the request and the context.
Answers = Callable[[str, bytes, Context], Awaitable[Answered]]
# Bytes. A message is in memory while its refusal waits for its turn; a larger one is refused at once.
MOST_HELD = 256 * 1024
# Serve waits for the end of a stream before it stops a replica.
NO_STREAM = "is not implemented with `front: serve`; ask the unary methods"


class Method(NamedTuple):
    """A method that a protocol declares, what answers it, if anything does, and the types of its messages."""

    rpc: Rpc | None
    request: type[Message]
    response: type[Message]


class GrpcServer:
    """Answers gRPC calls; every error, foreseen or not, is answered as a status."""

    def __init__(self, service: Service) -> None:
        """Set the protocols to serve."""
        self._ingress, self._access, self._headers = service.ingress, service.access, service.headers
        self._methods = {
            path: Method(service.calls.get(path), GetMessageClass(each.input_type), GetMessageClass(each.output_type))
            for path, each in methods(service.protocols)
        }

    async def __call__(self, path: str, body: bytes, context: Context) -> Answered:
        """Answer a call of `<service>/<method>`; its request is decoded once the caller is known."""
        method, metadata = self._methods[path], dict[str, Any](context.invocation_metadata())
        if method.rpc is None:
            context.set_code(grpc.StatusCode.UNIMPLEMENTED)
            context.set_details(f"{path} is not served")
            return method.response()
        if not method.rpc.observed:
            return await self._answered(path, body, context, metadata, Call(Trace("")))
        # https://opentelemetry.io/docs/specs/semconv/rpc/
        known = {"rpc.system.name": "grpc", "rpc.method": path}
        known["ensemble.request.id"] = metadata.get("request_id", "")
        with self._ingress.observer.call("grpc", metadata, known) as call:
            call.attributes["rpc.response.status_code"] = grpc.StatusCode.OK.name
            return await self._answered(path, body, context, metadata, call)

    async def _answered(
        self, path: str, body: bytes, context: Context, metadata: Mapping[str, str], call: Call
    ) -> Answered:
        try:
            check_once([name for name, _ in context.invocation_metadata()])
            return await self._handled(path, body, metadata, call)
        except EnsembleError as err:
            error = err
        except Exception:
            trace = call.trace.parent[TRACE_ID]
            logger.exception("failed on a call of %s; trace %s", path, trace, extra={"trace_ids": [trace]})
            error = EnsembleError(INTERNAL_HINT)
        call.fail(error)
        call.attributes["rpc.response.status_code"] = error.grpc_status
        # Returned, not raised: a client's mistake is not worth a traceback in the log.
        context.set_code(grpc.StatusCode[error.grpc_status])
        context.set_details(f"{error.code}: {error.message}")
        if error.retry_after_s is not None:
            # https://github.com/grpc/proposal/blob/master/A6-client-retries.md
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000))),))
        return self._methods[path].response()

    async def _handled(self, path: str, body: bytes, metadata: Mapping[str, str], call: Call) -> Answered:
        (rpc, request, _), settings = self._methods[path], self._ingress.settings
        assert rpc is not None
        key = ""
        if self._access is not None and not rpc.is_open:
            key = self._access.admit(metadata.get("authorization"))
        call.caller = caller(metadata, key, settings.fair_by, self._headers)
        if rpc.observed and len(body) <= MOST_HELD:
            await self._ingress.admission.admit(call.caller)
        elif rpc.observed:
            self._ingress.admission.check(by=call.caller)
        return await rpc.handler(decoded(body, request, settings.max_request_bytes, rpc.fields(settings)), call)


def methods(protocols: Iterable[Protocol]) -> list[tuple[str, MethodDescriptor]]:
    """List the methods of protocols' services by their paths."""
    services = [service for protocol in protocols for service in protocol.services]
    return [(f"{service.full_name}/{each.name}", each) for service in services for each in service.methods]


def by_serve(protocols: Iterable[Protocol], answer: Answers) -> dict[str, Callable[..., Any]]:
    """List what Serve calls for each method: it has only the method's name."""
    served = methods(each for each in protocols if each.behind_serve)
    return {each.name: (_streaming if each.server_streaming else _unary)(path, answer) for path, each in served}


def _unary(path: str, answer: Answers) -> Callable[..., Any]:
    async def answered(request: bytes, grpc_context: Context) -> Answered:
        return await answer(path, request, grpc_context)

    return answered


def _streaming(path: str, _: Answers) -> Callable[..., Any]:
    async def answered(request: bytes, grpc_context: Context) -> AsyncIterator[Message]:
        grpc_context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        grpc_context.set_details(f"{path} {NO_STREAM}")
        return
        yield

    return answered

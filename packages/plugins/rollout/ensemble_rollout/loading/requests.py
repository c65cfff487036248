"""Requests to load and unload members, by HTTP below `/v2/repository/models` and by gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import Conflict, Forbidden, ImageTooLarge, NotFound, NotReady
from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.http import bodies
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.grpc import SERVICE, parameters
from deployments.ingress.routes import OF_ARRIVING, Calls, Route, Routes, Rpc, encoded
from deployments.observe.observer import Call
from ensemble_rollout.loading.control import ModelControl
from ensemble_serving.protocol import inference_pb2 as pb

PATH = "/v2/repository/models/{model}"
MAX_BYTES = 64 * 1024
ChangeMember = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class RepositoryRequest(msgspec.Struct):
    """A request to load or unload a model."""

    parameters: dict[str, Any] = {}


def routes(ingress: Ingress, control: ModelControl) -> Routes:
    """Make the extension's paths; the ingress admits the requests."""

    def route(change: ChangeMember, summary: str) -> Route:
        async def handler(request: Request, call: Call) -> Response:
            control.check_permitted(call.caller.name)
            body, _ = await bodies.document(request, ingress.capacity, call.caller, bodies.Limit(MAX_BYTES))
            await change(request.path_params["model"], bodies.parsed(body or b"{}", RepositoryRequest).parameters)
            return encoded({})

        described = f"Open Inference Protocol, model repository: {summary}"
        errors = (*OF_ARRIVING, Forbidden, NotFound, Conflict, NotReady)
        body = {"application/json": RepositoryRequest}
        return Route(
            "POST", handler, described, (dict[str, Any],), errors, AS_TEXT, body=body, is_on=lambda: control.is_on
        )

    return {
        f"{PATH}/load": route(control.load, "load a version of a member"),
        f"{PATH}/unload": route(control.unload, "unload a member"),
    }


def calls(control: ModelControl) -> Calls:
    """Make the extension's methods."""

    def rpc(change: ChangeMember, answer: type[Message]) -> Rpc:
        async def handler(request: Any, call: Call) -> Message:
            control.check_permitted(call.caller.name)
            if (size := request.ByteSize()) > MAX_BYTES:
                raise ImageTooLarge(f"the request has {size} bytes; at most {MAX_BYTES} are accepted")
            await change(request.model_name, parameters(request.parameters))
            return answer()

        return Rpc(handler)

    return {
        f"{SERVICE.full_name}/RepositoryModelLoad": rpc(control.load, pb.RepositoryModelLoadResponse),
        f"{SERVICE.full_name}/RepositoryModelUnload": rpc(control.unload, pb.RepositoryModelUnloadResponse),
    }

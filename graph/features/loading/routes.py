"""Loading and unloading members over HTTP, below `/v2/repository/models`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import Conflict, Forbidden, NotFound, NotReady
from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import OF_ARRIVING, Route, Routes, encoded
from deployments.ingress.ingress import Ingress
from deployments.observe.observer import Call
from graph.features.loading.control import ModelControl
from graph.features.loading.parameters import MAX_BYTES

PATH = "/v2/repository/models/{model}"


class RepositoryRequest(msgspec.Struct):
    """A request to load or unload a model."""

    parameters: dict[str, Any] = {}


def routes(ingress: Ingress, control: ModelControl) -> Routes:
    """Make the extension's paths; the ingress admits the requests."""

    def route(change: Callable[[str, Mapping[str, Any]], Awaitable[None]], summary: str) -> Route:
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

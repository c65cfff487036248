"""Loading and unloading members over HTTP, below `/v2/repository/models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import Conflict, Forbidden, InvalidParameter, NotFound, NotReady
from deployments.ingress.http import bodies, tensors
from deployments.ingress.http.routes import AS_TEXT, OF_ARRIVING, Handler, Route, Routes, encoded
from deployments.ingress.ingress import Ingress
from deployments.observe.observer import Call
from graph.capabilities.loading.loading import Loading
from graph.capabilities.loading.parameters import MOST_BYTES, check_unload, version_to_load

PATH = "/v2/repository/models/{model}"


class Asked(msgspec.Struct):
    """What is asked of the repository."""

    parameters: dict[str, Any] = {}


# What loads members for who shows the key of a name, empty for none; raises NotFound where nobody may, and Forbidden.
Permit = Callable[[str], Loading]


class HttpRepository:
    """Answers the paths of the protocol's extension."""

    def __init__(self, ingress: Ingress, permit: Permit) -> None:
        """Set what admits requests, and what loads members."""
        self._ingress, self._permit = ingress, permit

    def routes(self) -> Routes:
        """Its paths."""
        return {
            f"{PATH}/load": _route(self._load, "load a version of a member"),
            f"{PATH}/unload": _route(self._unload, "unload a member"),
        }

    async def _load(self, request: Request, call: Call) -> Response:
        loading, parameters = await self._permitted(request, call)
        await loading.load(request.path_params["model"], version_to_load(parameters))
        return encoded({})

    async def _unload(self, request: Request, call: Call) -> Response:
        loading, parameters = await self._permitted(request, call)
        check_unload(parameters)
        await loading.unload(request.path_params["model"])
        return encoded({})

    async def _permitted(self, request: Request, call: Call) -> tuple[Loading, Mapping[str, Any]]:
        """What loads members, and the parameters of the request."""
        loading = self._permit(call.caller.name)
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await bodies.document(request, MOST_BYTES, arrival)
        parameters = tensors.parsed(body or b"{}").get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidParameter("'parameters' must be an object")
        return loading, parameters


def _route(handler: Handler, summary: str) -> Route:
    told = f"Open Inference Protocol, model repository: {summary}"
    errors = (*OF_ARRIVING, Forbidden, NotFound, Conflict, NotReady)
    return Route("POST", handler, told, (dict[str, Any],), errors, AS_TEXT, body={"application/json": Asked})

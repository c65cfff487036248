"""HTTP: registering system shared memory, an extension of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import NotFound
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import AS_TEXT, OF_ARRIVING, OF_KEYS, Handler, Route, Routes, encoded
from deployments.ingress.service import Service
from deployments.ingress.shared_memory import Region
from deployments.observe.observer import Call

PATH = "/v2/systemsharedmemory"
REGION_PATH = PATH + "/region/{region}"
MOST_BYTES = 64 * 1024


class Registration(msgspec.Struct):
    """A part of an object in /dev/shm."""

    key: str
    byte_size: int
    offset: int = 0


def routes(service: Service) -> Routes:
    """The extension's paths, each for one region and for all."""
    regions = service.regions

    async def register(request: Request, call: Call) -> Response:
        body, _ = await bodies.document(request, service.ingress.capacity, call.caller, bodies.Limit(MOST_BYTES))
        asked = bodies.parsed(body, Registration)
        regions.register(Region(request.path_params["region"], asked.key, asked.offset, asked.byte_size))
        return encoded({})

    async def status(request: Request, _: Call) -> Response:
        return encoded(regions.listed(request.path_params.get("region", "")))

    async def unregister(request: Request, _: Call) -> Response:
        regions.unregister(request.path_params.get("region", ""))
        return encoded({})

    found = {f"{REGION_PATH}/register": _route("POST", register, "register a region", body=Registration)}
    for path, which in ((REGION_PATH, "a region"), (PATH, "every region")):
        found[f"{path}/status"] = _route("GET", status, f"report {which}", list[Region])
        found[f"{path}/unregister"] = _route("POST", unregister, f"unregister {which}")
    return {path: replace(route, is_on=lambda: regions.is_on) for path, route in found.items()}


def _route(method: str, handler: Handler, summary: str, answer: Any = dict[str, Any], body: Any = None) -> Route:
    title = f"Open Inference Protocol, system shared memory: {summary}"
    errors = (*(OF_ARRIVING if body else OF_KEYS), NotFound)
    return Route(method, handler, title, (answer,), errors, AS_TEXT, body={"application/json": body} if body else {})

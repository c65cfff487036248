"""Registering system shared memory over HTTP, below `/v2/systemsharedmemory`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter, NotFound, RateLimited, Unauthenticated
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import AS_TEXT, OF_ARRIVING, Handler, Route, Routes, encoded
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


class SharedMemory:
    """Answers the paths of the protocol's extension."""

    def __init__(self, service: Service) -> None:
        """Set where registrations are kept."""
        self._ingress = service.ingress
        self._regions = service.regions

    def routes(self) -> Routes:
        """Its paths, each for one region and for all."""
        routes: Routes = {
            f"{REGION_PATH}/register": _route("POST", self._register, "register a region", body=Registration)
        }
        for path, which in ((REGION_PATH, "a region"), (PATH, "every region")):
            routes[f"{path}/status"] = _route("GET", self._status, f"tell of {which}", list[Region])
            routes[f"{path}/unregister"] = _route("POST", self._unregister, f"unregister {which}")
        return routes

    async def _register(self, request: Request, call: Call) -> Response:
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await bodies.document(request, MOST_BYTES, arrival)
        try:
            asked = msgspec.json.decode(body, type=Registration)
        except (msgspec.MsgspecError, UnicodeError) as err:
            raise InvalidParameter(f"a registration has a key, a byte_size and an offset: {err}") from err
        self._regions.register(Region(_region(request), asked.key, asked.offset, asked.byte_size))
        return encoded({})

    async def _status(self, request: Request, _: Call) -> Response:
        return encoded(self._regions.listed(_region(request)))

    async def _unregister(self, request: Request, _: Call) -> Response:
        self._regions.unregister(_region(request))
        return encoded({})


def _region(request: Request) -> str:
    """The name of the region in the path, empty where none is."""
    region: str = request.path_params.get("region", "")
    return region


def _route(method: str, handler: Handler, summary: str, answer: Any = dict[str, Any], body: Any = None) -> Route:
    told = f"Open Inference Protocol, system shared memory: {summary}"
    errors = (*(OF_ARRIVING if body else (Unauthenticated, RateLimited)), NotFound)
    return Route(method, handler, told, (answer,), errors, AS_TEXT, body={"application/json": body} if body else {})

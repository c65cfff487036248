"""The Open Inference Protocol (KServe v2) over HTTP, below `/v2`, with its extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import (
    EnsembleError,
    InvalidParameter,
    NotReady,
    RateLimited,
    Unauthenticated,
    Unloaded,
    UnsupportedMediaType,
)
from deployments.ingress import options
from deployments.ingress.http import bodies, tensors
from deployments.ingress.http.routes import (
    AS_TEXT,
    OF_ARRIVING,
    OF_CLASSIFYING,
    Handler,
    Route,
    Routes,
    aged,
    encoded,
    unlisted,
)
from deployments.ingress.open_inference import metadata
from deployments.ingress.open_inference.catalog import Catalog
from deployments.ingress.open_inference.model import Model
from deployments.ingress.service import Service
from deployments.ingress.statistics import AllStatistics
from deployments.observe.observer import Call

MODELS = "/v2/models"
# Many clients say of JSON what they say of any bytes; curl says that it is a form.
JSON_TYPES = frozenset({"", "application/json", "application/octet-stream", "application/x-www-form-urlencoded"})


class Live(msgspec.Struct, frozen=True):
    """The process answers."""

    live: bool


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every member has answered once since the start, or the quorum goes on without a remote one."""

    name: str
    ready: bool
    missing: Mapping[str, str] | None = None


class OpenInference:
    """Answers the protocol's paths."""

    def __init__(self, service: Service) -> None:
        """Set what is served."""
        self._service = service
        self._ingress = service.ingress
        self._catalog = Catalog(service)

    def routes(self) -> Routes:
        """The protocol's paths; the only version that there is of a model may be named."""
        routes = {
            "/v2": _get(self._server, "the server", metadata.ServerMetadata),
            "/v2/health/live": _health(self._live, "the process answers", Live),
            "/v2/health/ready": _health(self._ready("ensemble"), "the server is ready", Ready, NotReady),
            "/v2/repository/index": Route(
                "POST",
                self._index,
                "Open Inference Protocol: the models",
                (list[metadata.IndexEntry],),
                OF_ARRIVING,
                AS_TEXT,
            ),
            f"{MODELS}/stats": _get(self._all_statistics, "what was counted of every model", AllStatistics),
        }
        for name, model in self._catalog.models.items():
            routes |= self._of(f"{MODELS}/{name}", model)
            routes |= {
                path: replace(route, handler=partial(self._versioned, name, route.handler))
                for path, route in unlisted(self._of(f"{MODELS}/{name}/versions/{{version}}", model)).items()
            }
        return routes

    def _of(self, path: str, model: Model) -> Routes:
        """The paths of a model."""
        name = model.metadata.name
        return {
            path: _get(self._tell(lambda: model.metadata), "the model's input and outputs", metadata.ModelMetadata),
            f"{path}/ready": _health(self._ready(name), "the model is ready", Ready, NotReady, Unloaded),
            f"{path}/config": _get(
                self._tell(lambda: metadata.config(model.metadata, model.max_batch_size)),
                "the model's configuration",
                metadata.ModelConfig,
            ),
            f"{path}/stats": _get(
                partial(self._statistics, model), "what this ingress counted of the model", AllStatistics
            ),
            f"{path}/infer": Route(
                "POST",
                partial(self._infer, model),
                "Open Inference Protocol: ask the model",
                (tensors.InferAnswer,),
                OF_CLASSIFYING,
                AS_TEXT,
                body={"application/json": tensors.InferRequest},
                observed=True,
            ),
        }

    async def _versioned(self, name: str, handler: Handler, request: Request, call: Call) -> Response:
        """What a handler answers, if the path names the model's version, which another may have become meanwhile."""
        self._catalog.find(name, request.path_params["version"])
        return await handler(request, call)

    async def _infer(self, model: Model, request: Request, call: Call) -> Response:
        settings = self._ingress.settings
        if (declared := bodies.media_type(request.headers)) not in JSON_TYPES:
            raise UnsupportedMediaType(f"{declared!r} is not application/json")
        header = request.headers.get(tensors.BINARY)
        # Of binary tensors only the JSON before them has elements.
        receive = bodies.document if header is None else bodies.body
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await receive(request, settings.max_request_bytes, arrival)
        asked = tensors.read(model, body, header, settings, self._service.regions)
        inferred = await model.infer(
            asked.tensor,
            [each.name for each in asked.requested],
            options.with_headers(options.from_parameters(asked.parameters), request.headers),
            asked.parameters,
            began=arrival.began,
            trace=call.trace,
            by=call.caller,
        )
        return aged(tensors.write(model, asked, inferred, self._service.regions), inferred.answers)

    def _ready(self, name: str) -> Handler:
        async def handler(_: Request, _call: Call) -> Response:
            self._service.check_ready(name)
            return encoded(Ready(name, True, self._service.missing() or None))

        return handler

    def _tell(self, content: Callable[[], Any]) -> Handler:
        async def handler(_: Request, _call: Call) -> Response:
            return encoded(content())

        return handler

    async def _live(self, _: Request, _call: Call) -> Response:
        return encoded(Live(True))

    async def _server(self, _: Request, _call: Call) -> Response:
        return encoded(self._catalog.server)

    async def _index(self, request: Request, call: Call) -> Response:
        """The models; the body may ask for those that are ready only."""
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await bodies.document(request, self._ingress.settings.max_request_bytes, arrival)
        ready = tensors.parsed(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise InvalidParameter("'ready' must be a bool")
        return encoded(self._catalog.index(ready))

    async def _statistics(self, model: Model, _: Request, _call: Call) -> Response:
        return encoded(self._catalog.statistics(model))

    async def _all_statistics(self, _: Request, _call: Call) -> Response:
        return encoded(self._catalog.statistics())


def _get(handler: Handler, summary: str, answer: Any) -> Route:
    return Route(
        "GET", handler, f"Open Inference Protocol: {summary}", (answer,), (Unauthenticated, RateLimited), AS_TEXT
    )


def _health(handler: Handler, summary: str, answer: Any, *errors: type[EnsembleError]) -> Route:
    return Route("GET", handler, f"Open Inference Protocol: {summary}", (answer,), errors, AS_TEXT, open=True)

"""The Open Inference Protocol (KServe v2) over HTTP, below `/v2`, with its extensions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import EnsembleError, NotReady, Unloaded, UnsupportedMediaType
from deployments.ingress import headers, options
from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.http import bodies
from deployments.ingress.open_inference import http_tensors as tensors
from deployments.ingress.open_inference import metadata
from deployments.ingress.open_inference.catalog import Catalog
from deployments.ingress.open_inference.model import MODEL, Model
from deployments.ingress.protocol import Service
from deployments.ingress.routes import (
    OF_ARRIVING,
    OF_CLASSIFYING,
    OF_KEYS,
    Handler,
    Route,
    Routes,
    aged,
    encoded,
    unlisted,
)
from deployments.ingress.statistics import AllStatistics
from deployments.observe.observer import Call

TITLE, MODELS = "Open Inference Protocol", "/v2/models"
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


class IndexRequest(msgspec.Struct):
    """Which models are listed: all, or only ready models."""

    ready: bool = False


class OpenInferenceHttp:
    """Answers the protocol's paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ingress = service.ingress
        self._catalog = Catalog(service)

    def routes(self) -> Routes:
        """Return the protocol's routes; a path may name a model's only version."""
        catalog = self._catalog
        routes = {
            "/v2": _get(lambda: catalog.server, "the server", metadata.ServerMetadata),
            "/v2/health/live": _health(lambda: Live(True), "the process answers", Live),
            "/v2/health/ready": _health(partial(self._ready, MODEL), "the server is ready", Ready, NotReady),
            "/v2/repository/index": Route(
                "POST", self._index, f"{TITLE}: the models", (list[metadata.IndexEntry],), OF_ARRIVING, AS_TEXT
            ),
            f"{MODELS}/stats": _get(catalog.statistics, "the statistics of every model", AllStatistics),
        }
        for name, model in catalog.models.items():
            routes |= self._of(f"{MODELS}/{name}", model)
            routes |= {
                path: replace(route, handler=partial(self._versioned, name, route.handler))
                for path, route in unlisted(self._of(f"{MODELS}/{name}/versions/{{version}}", model)).items()
            }
        return routes

    def _of(self, path: str, model: Model) -> Routes:
        """Return the routes of a model."""
        ready = partial(self._ready, model.metadata.name)
        statistics = partial(self._catalog.statistics, model)
        return {
            path: _get(lambda: model.metadata, "the model's input and outputs", metadata.ModelMetadata),
            f"{path}/ready": _health(ready, "the model is ready", Ready, NotReady, Unloaded),
            f"{path}/config": _get(
                lambda: metadata.config(model.metadata, model.max_batch_size),
                "the model's configuration",
                metadata.ModelConfig,
            ),
            f"{path}/stats": _get(statistics, "the model's statistics at this ingress replica", AllStatistics),
            f"{path}/infer": Route(
                "POST",
                partial(self._infer, model),
                f"{TITLE}: run the model",
                (tensors.InferAnswer,),
                OF_CLASSIFYING,
                AS_TEXT,
                body={"application/json": tensors.InferRequest},
                observed=True,
            ),
        }

    async def _versioned(self, name: str, handler: Handler, request: Request, call: Call) -> Response:
        """Call a handler if the path names the model's version, which may have changed meanwhile."""
        self._catalog.find(name, request.path_params["version"])
        return await handler(request, call)

    async def _infer(self, model: Model, request: Request, call: Call) -> Response:
        settings, store = self._ingress.settings, self._service.tensor_store
        if (declared := bodies.media_type(request.headers)) not in JSON_TYPES:
            raise UnsupportedMediaType(f"{declared!r} is not application/json")
        length = tensors.json_bytes(request.headers.get(tensors.BINARY))
        # Without JSON the whole body is one image.
        is_image = length == 0 and model.takes_images
        limit = bodies.of_image(settings, self._service.max_image_bytes) if is_image else None
        by_headers, admission = headers.with_options(options.DEFAULT, request.headers), self._ingress.admission
        body, began = await bodies.document(request, admission, call.caller, limit, length, by_headers)
        asked = tensors.read(model, body, length, settings, store)
        inferred = await model.infer(
            asked.tensor,
            [each.name for each in asked.requested],
            headers.with_options(options.from_parameters(asked.request.parameters), request.headers),
            call,
            began,
        )
        return aged(tensors.write(model, asked, inferred, store), inferred.answers)

    def _ready(self, name: str) -> Ready:
        self._service.check_ready(name)
        return Ready(name, True, self._service.missing() or None)

    async def _index(self, request: Request, call: Call) -> Response:
        body, _ = await bodies.document(request, self._ingress.admission, call.caller)
        return encoded(self._catalog.index(bodies.parsed(body or b"{}", IndexRequest).ready))


def _get(
    report: Callable[[], Any], summary: str, answer: Any, *errors: type[EnsembleError], is_open: bool = False
) -> Route:
    """Make a route that answers the current report."""

    async def handler(_: Request, _call: Call) -> Response:
        return encoded(report())

    failures = errors if is_open else OF_KEYS
    return Route("GET", handler, f"{TITLE}: {summary}", (answer,), failures, AS_TEXT, open=is_open)


_health = partial(_get, is_open=True)

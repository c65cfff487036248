"""The Open Inference Protocol (KServe v2) over HTTP, below `/v2`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
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
    UnsupportedMediaType,
)
from deployments.ingress import open_inference, options
from deployments.ingress.arrivals import Arrival
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import AS_TEXT, OF_CLASSIFYING, Handler, Route, Routes, aged, encoded, plain
from deployments.ingress.service import Service
from deployments.observe.observer import Call

MODEL_PATH = f"/v2/models/{open_inference.MODEL}"
# Triton's extension for binary tensors: this many bytes of JSON, then the tensors.
BINARY_TENSORS = "inference-header-content-length"


class Live(msgspec.Struct, frozen=True):
    """The process answers."""

    live: bool


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every member has answered once since the start, or the quorum goes on without a remote one."""

    name: str
    ready: bool
    missing: Mapping[str, str] | None = None


class InputTensor(msgspec.Struct):
    """A tensor of a request: encoded images in base64."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferRequest(msgspec.Struct):
    """Images to classify."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[dict[str, Any]] = []


class OutputTensor(msgspec.Struct):
    """A tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """What the ensemble says of a request's images."""

    model_name: str
    model_version: str
    parameters: dict[str, str]
    outputs: list[OutputTensor]
    id: str = ""


class OpenInference:
    """Answers the protocol's paths."""

    def __init__(self, service: Service) -> None:
        """Set what is served."""
        self._service = service
        self._ingress = service.ingress
        self._metadata = open_inference.metadata(service.class_count)

    def routes(self) -> Routes:
        """The protocol's paths; the only version there is may be named."""
        routes = {
            "/v2": _get(self._server_metadata, "Open Inference Protocol: the server", open_inference.ServerMetadata),
            "/v2/health/live": _health(self._live, "Open Inference Protocol: the process answers", Live),
            "/v2/health/ready": _health(self._ready, "Open Inference Protocol: the server is ready", Ready, NotReady),
        }
        for path in (MODEL_PATH, f"{MODEL_PATH}/versions/{open_inference.VERSION}"):
            routes |= {
                path: _get(
                    self._model_metadata,
                    "Open Inference Protocol: the model's input and outputs",
                    open_inference.ModelMetadata,
                ),
                f"{path}/ready": _health(self._ready, "Open Inference Protocol: the model is ready", Ready, NotReady),
                f"{path}/infer": Route(
                    "POST",
                    self._infer,
                    "Open Inference Protocol: classify base64-encoded images",
                    (InferAnswer,),
                    OF_CLASSIFYING,
                    AS_TEXT,
                    body={"application/json": InferRequest},
                    observed=True,
                ),
            }
        return routes

    async def _infer(self, request: Request, call: Call) -> Response:
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await _json_object(request, self._ingress.settings.max_request_bytes, arrival)
        images = self._images(body)
        identifier = _field(body, "id", str, "")
        names = open_inference.check_outputs([_field(output, "name", str) for output in _list(body, "outputs")])
        parameters = _field(body, "parameters", dict, {})
        asked = options.with_headers(options.from_parameters(parameters), request.headers)
        outcomes = await self._ingress.classify(images, asked, began=arrival.began, trace=call.trace, by=call.caller)
        answers = open_inference.succeeded(outcomes)
        outputs = [
            OutputTensor(
                tensor.name,
                tensor.datatype,
                tensor.shape,
                tensor.data if isinstance(tensor.data, list) else tensor.data.ravel().tolist(),
            )
            for tensor in open_inference.tensors(answers, names)
        ]
        answer = InferAnswer(
            open_inference.MODEL,
            open_inference.VERSION,
            open_inference.response_parameters(answers, parameters),
            outputs,
            identifier,
        )
        return aged(plain(msgspec.to_builtins(answer)), answers)

    def _images(self, body: dict[str, Any]) -> list[bytes]:
        inputs = _list(body, "inputs")
        open_inference.check_inputs([(_field(i, "name", str), _field(i, "datatype", str)) for i in inputs])
        shape, data = _field(inputs[0], "shape", list), _field(inputs[0], "data", list)
        self._ingress.check_count(len(data))
        open_inference.check_shape(shape, len(data))
        try:
            return [base64.b64decode(_element(item), validate=True) for item in data]
        except (binascii.Error, TypeError, ValueError) as err:
            raise InvalidParameter(f"the data of 'image' must be base64 strings: {err}") from err

    async def _live(self, _: Request, _call: Call) -> Response:
        return encoded(Live(True))

    async def _ready(self, _: Request, _call: Call) -> Response:
        self._service.check_ready()
        return encoded(Ready(open_inference.MODEL, True, self._service.missing() or None))

    async def _server_metadata(self, _: Request, _call: Call) -> Response:
        return encoded(open_inference.SERVER)

    async def _model_metadata(self, _: Request, _call: Call) -> Response:
        return encoded(self._metadata)


def _get(handler: Handler, summary: str, answer: type) -> Route:
    return Route("GET", handler, summary, (answer,), (Unauthenticated, RateLimited), AS_TEXT)


def _health(handler: Handler, summary: str, answer: type, *errors: type[EnsembleError]) -> Route:
    return Route("GET", handler, summary, (answer,), errors, AS_TEXT, open=True)


async def _json_object(request: Request, limit: int, arrival: Arrival) -> dict[str, Any]:
    if BINARY_TENSORS in request.headers:
        raise UnsupportedMediaType(
            "binary tensors after the JSON are not supported; send base64 in JSON (tritonclient: binary_data=False), "
            "or the file itself to /classify, or use gRPC"
        )
    if (declared := bodies.media_type(request.headers)) not in {"", "application/json"}:
        raise UnsupportedMediaType(f"{declared!r} is not application/json")
    try:
        body = json.loads(await bodies.document(request, limit, arrival))
    except (ValueError, RecursionError) as err:
        raise InvalidParameter(f"the body is not valid JSON: {err}") from err
    if not isinstance(body, dict):
        raise InvalidParameter("the body must be a JSON object")
    return body


def _field(container: Any, name: str, kind: type, default: Any = None) -> Any:
    value = container.get(name, default) if isinstance(container, dict) else None
    if not isinstance(value, kind):
        raise InvalidParameter(f"{name!r} must be a {kind.__name__}")
    return value


def _list(body: dict[str, Any], name: str) -> list[Any]:
    items: list[Any] = _field(body, name, list, [])
    return items


def _element(item: Any) -> Any:
    """An element of the tensor; of shape [-1, 1] each may be in a list of its own."""
    return item[0] if isinstance(item, list) and len(item) == 1 else item

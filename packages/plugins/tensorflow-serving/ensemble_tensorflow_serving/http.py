"""TensorFlow Serving's REST API, below `/v1/models/ensemble`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter, NotFound
from deployments.contract.options import Options
from deployments.ingress import options
from deployments.ingress.error_style import ErrorStyle, ProtocolError
from deployments.ingress.http import bodies
from deployments.ingress.open_inference.model import INPUT, MODEL
from deployments.ingress.open_inference.tensors import Tensor, to_list
from deployments.ingress.protocol import Service
from deployments.ingress.routes import (
    OF_CLASSIFYING,
    OF_KEYS,
    Handler,
    Route,
    Routes,
    aged,
    plain,
    unlisted,
)
from deployments.observe.observer import Call
from ensemble_tensorflow_serving.servable import LATEST, VERSION, Servable, check_input, not_found

PATH = f"/v1/models/{MODEL}"
# In that API every mistake in a request is a bad request.
AS_MESSAGE = ErrorStyle(ProtocolError, lambda error: {"error": error.message}, {422: 400})
OTHERS = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?([/:][^/:]+)?")


class PredictRequest(msgspec.Struct):
    """Images by row (`instances`) or by column (`inputs`), each `{"b64": ...}`; one of the two."""

    signature_name: str = ""
    instances: list[Any] = []
    inputs: dict[str, list[Any]] | list[Any] = []


class Predictions(msgspec.Struct):
    """The answer by row: the outputs of each image."""

    predictions: list[dict[str, Any]]


class Outputs(msgspec.Struct):
    """The answer by column: each output of all images."""

    outputs: dict[str, list[Any]]


class ClassifyRequest(msgspec.Struct):
    """Examples, each with the feature `image`, `{"b64": ...}`."""

    examples: list[dict[str, Any]]
    signature_name: str = ""
    context: dict[str, Any] = {}


class Classes(msgspec.Struct):
    """For each image every class and its probability, descending."""

    results: list[list[tuple[str, float]]]


class TensorFlowServingHttp:
    """Answers that API's paths."""

    def __init__(self, service: Service) -> None:
        self._ingress, self._max_image_bytes = service.ingress, service.max_image_bytes
        self._servable = Servable(service)

    def routes(self) -> Routes:
        """Return the API's routes; a path may name the only version."""
        routes = self._of(PATH)
        for version in (LATEST, VERSION):
            routes |= unlisted(self._of(f"{PATH}/versions/{version}"))
        return routes

    def _of(self, path: str) -> Routes:
        return {
            path: _route("GET", self._status, "the versions and their states", dict[str, Any]),
            f"{path}/metadata": _route("GET", self._metadata, "the signature", dict[str, Any]),
            f"{path}:predict": _route(
                "POST", self._predict, "the outputs for images", Predictions, Outputs, body=PredictRequest
            ),
            f"{path}:classify": _route("POST", self._classify, "the classes of images", Classes, body=ClassifyRequest),
        }

    async def _status(self, _: Request, _call: Call) -> Response:
        status = self._servable.status()
        for each in status["model_version_status"]:
            each["status"]["error_code"] = "OK"
        return plain(status)

    async def _metadata(self, _: Request, _call: Call) -> Response:
        spec = {"name": MODEL, "signature_name": "", "version": str(VERSION)}
        return plain({"model_spec": spec, "metadata": {"signature_def": self._servable.signatures()}})

    async def _predict(self, request: Request, call: Call) -> Response:
        asked = options.with_headers(options.DEFAULT, request.headers)
        fields, began = await self._body(request, call, asked)
        by_row = "instances" in fields
        if by_row == ("inputs" in fields):
            raise InvalidParameter("the request needs either 'instances', images by row, or 'inputs', by column")
        if by_row:
            images = [_decoded(row if _is_value(row) else _only(row)) for row in self._listed(fields, "instances")]
        else:
            if isinstance(fields["inputs"], dict):
                fields["inputs"] = _only(fields["inputs"])
            images = [_decoded(value) for value in self._listed(fields, "inputs")]
        inferred = await self._servable.predict(images, self._servable.outputs, asked, call, began)
        columns = {tensor.name: _rows(tensor) for tensor in inferred.outputs}
        if not by_row:
            return aged(plain({"outputs": columns}), inferred.answers)
        predictions = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return aged(plain({"predictions": predictions}), inferred.answers)

    async def _classify(self, request: Request, call: Call) -> Response:
        asked = options.with_headers(options.DEFAULT, request.headers)
        fields, began = await self._body(request, call, asked)
        context, examples = fields.get("context", {}), self._listed(fields, "examples")
        if not all(isinstance(example, dict) for example in (context, *examples)):
            raise InvalidParameter(f"'context' and each of 'examples' must be an object with the feature {INPUT!r}")
        # The context's image is decoded once, and is one object in every example that has none of its own.
        shared = _decoded(_only(context)) if context else None
        images = [_decoded(_only(example)) if example or shared is None else shared for example in examples]
        return plain({"results": await self._servable.classify(images, asked, call, began)})

    async def _body(self, request: Request, call: Call, asked: Options) -> tuple[dict[str, Any], float]:
        """Read the request's fields, and the time at which it began to arrive."""
        image = bodies.of_image(self._ingress.settings, self._max_image_bytes)
        capacity = self._ingress.capacity
        body, began = await bodies.document(request, capacity, call.caller, image=image, asked=asked)
        fields = bodies.parsed(body, dict[str, Any])
        signature = fields.get("signature_name", "")
        if not isinstance(signature, str):
            raise InvalidParameter("'signature_name' must be a string")
        self._servable.check(MODEL, None, signature)
        return fields, began

    def _listed(self, fields: dict[str, Any], name: str) -> list[Any]:
        values = fields.get(name)
        if not isinstance(values, list):
            raise InvalidParameter(f"{name!r} must be a list")
        self._ingress.capacity.check_count(len(values))
        return values


def unknown(path: str) -> NotFound | None:
    """Return the error of an unknown path of a model; None for another path."""
    found = OTHERS.fullmatch(path)
    if found is None:
        return None
    name, version, verb = found.groups()
    if name == MODEL and version in {None, str(LATEST), str(VERSION)}:
        return NotFound(f"{verb} is not served; {PATH} has /metadata, :predict and :classify")
    return not_found(name, version)


def _route(method: str, handler: Handler, summary: str, *answers: Any, body: Any = None) -> Route:
    errors = OF_CLASSIFYING if body else OF_KEYS
    title = f"TensorFlow Serving's API: {summary}"
    asked = {"application/json": body} if body else {}
    return Route(method, handler, title, answers, errors, AS_MESSAGE, body=asked, observed=bool(body))


def _is_value(row: Any) -> bool:
    return isinstance(row, str) or (isinstance(row, dict) and set(row) == {"b64"})


def _only(inputs: Any) -> Any:
    """Return the one input of an object."""
    if not isinstance(inputs, dict):
        raise InvalidParameter(f'an image is {{"b64": ...}}, or an object with it as {INPUT!r}')
    check_input(list(inputs))
    return inputs[INPUT]


def _decoded(value: Any) -> bytes:
    """Decode a value, which is base64 in an object. A string would be its own bytes, which no image is."""
    encoded = value.get("b64") if isinstance(value, dict) and set(value) == {"b64"} else None
    if not isinstance(encoded, str):
        raise InvalidParameter('an image is {"b64": ...}, its bytes in base64')
    try:
        return msgspec.convert(encoded, bytes)
    except ValueError as err:
        raise InvalidParameter(f"{err}; {bodies.BASE64}") from err


def _rows(tensor: Tensor) -> list[Any]:
    """Return a row of the tensor for each image."""
    return to_list(tensor) if tensor.datatype == "BYTES" else tensor.data.tolist()

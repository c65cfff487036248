"""TensorFlow Serving's API as a protocol of the server, and its REST part, below `/v1/models/ensemble`."""

import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter, NotFound
from deployments.ingress import headers, options
from deployments.ingress.error_style import ErrorStyle, ProtocolError
from deployments.ingress.http import base64_images, bodies
from deployments.ingress.http.base64_images import Base64
from deployments.ingress.open_inference.model import INPUT, MODEL
from deployments.ingress.open_inference.tensors import Tensor, to_list
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_CLASSIFYING, OF_KEYS, Calls, Handler, Route, Routes, aged, plain, unlisted
from deployments.observe.observer import Call
from ensemble_interop.tensorflow_serving.grpc import MODEL_SERVICE, PREDICTION, TensorFlowServingGrpc
from ensemble_interop.tensorflow_serving.servable import LATEST, VERSION, Servable, not_found

PATH = f"/v1/models/{MODEL}"
# In that API every mistake in a request is a bad request.
AS_MESSAGE = ErrorStyle(ProtocolError, lambda error: {"error": error.message}, {422: 400})
HINT = f'an image is {{"b64": ...}}, its bytes in base64, alone or as the input {INPUT!r}'
OTHERS = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?([/:][^/:]+)?")


class Encoded(msgspec.Struct, forbid_unknown_fields=True):
    """An image's bytes in base64."""

    b64: Base64


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """An image, or an object with it as the input `image`."""

    b64: Base64 | None = None
    image: Encoded | None = None


class Column(msgspec.Struct, forbid_unknown_fields=True):
    """The only input: all images."""

    image: list[Encoded]


class PredictRequest(msgspec.Struct):
    """Images by row (`instances`) or by column (`inputs`), each `{"b64": ...}`; one of the two."""

    signature_name: str = ""
    instances: list[Row] | None = None
    inputs: list[Encoded] | Column | None = None


class Predictions(msgspec.Struct):
    """The answer by row: the outputs of each image."""

    predictions: list[dict[str, Any]]


class Outputs(msgspec.Struct):
    """The answer by column: each output of all images."""

    outputs: dict[str, list[Any]]


class TensorFlowServingHttp:
    """Answers that API's paths."""

    def __init__(self, service: Service) -> None:
        self._ingress = service.ingress
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
        asked = headers.with_options(options.DEFAULT, request.headers)
        body, began = await bodies.document(request, self._ingress.admission, call.caller, asked=asked)
        sent = bodies.parsed(body, PredictRequest, HINT)
        self._servable.check(MODEL, None, sent.signature_name)
        if (sent.instances is None) == (sent.inputs is None):
            raise InvalidParameter("the request needs either 'instances', images by row, or 'inputs', by column")
        column = sent.inputs.image if isinstance(sent.inputs, Column) else sent.inputs or []
        # Before anything looks at each of them.
        self._ingress.admission.check_count(len(column if sent.instances is None else sent.instances))
        texts = [image.b64 for image in column] if sent.instances is None else [_text(row) for row in sent.instances]
        images = base64_images.decoded(texts)
        inferred = await self._servable.predict(images, self._servable.outputs, asked, call, began)
        columns = {tensor.name: _rows(tensor) for tensor in inferred.outputs}
        if sent.instances is None:
            return aged(plain({"outputs": columns}), inferred.answers)
        predictions = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return aged(plain({"predictions": predictions}), inferred.answers)


def _route(method: str, handler: Handler, summary: str, *answers: Any, body: Any = None) -> Route:
    errors = OF_CLASSIFYING if body else OF_KEYS
    title = f"TensorFlow Serving's API: {summary}"
    asked = {"application/json": body} if body else {}
    return Route(method, handler, title, answers, errors, AS_MESSAGE, body=asked, observed=bool(body))


def _text(row: Row) -> str:
    image = row.b64 if row.image is None else row.image.b64
    if image is None or None not in (row.b64, row.image):
        raise InvalidParameter(HINT)
    return image


def _rows(tensor: Tensor) -> list[Any]:
    return to_list(tensor) if tensor.datatype == "BYTES" else tensor.data.tolist()


class TensorFlowServing(Protocol):
    """Serves the ensemble as a servable with one signature."""

    prefix, style = "/v1/", AS_MESSAGE
    services = (PREDICTION, MODEL_SERVICE)
    large = (f"{PREDICTION.full_name}/Predict",)

    def routes(self, service: Service) -> Routes:
        """Return its paths below `/v1/models`."""
        return TensorFlowServingHttp(service).routes()

    def calls(self, service: Service) -> Calls:
        """Return its methods."""
        return TensorFlowServingGrpc(service).calls()

    def not_found(self, path: str) -> NotFound:
        """Return the error of an unknown path, in that API's words."""
        found = OTHERS.fullmatch(path)
        if found is None:
            return super().not_found(path)
        name, version, verb = found.groups()
        if name == MODEL and version in {None, str(LATEST), str(VERSION)}:
            return NotFound(f"{verb} is not served; {PATH} has /metadata and :predict")
        return not_found(name, version)

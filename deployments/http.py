"""HTTP: `/classify`, the Open Inference Protocol, health, and the OpenAPI document.

Requests are dispatched by a table and parsed here: FastAPI's machinery would cost more than the rest of the ingress.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from deployments import open_inference
from deployments.ingress import INTERNAL_HINT, Arrival, Ingress, Outcome
from deployments.observer import Call
from deployments.openapi import DOCS, OPENAPI
from graph.errors import (
    EnsembleError,
    ImageTooLarge,
    InvalidParameter,
    MethodNotAllowed,
    NotFound,
    NotReady,
    UnsupportedMediaType,
)

logger = logging.getLogger(__name__)

STATUS = {
    "invalid_image": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "image_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_parameter": 422,
    "internal": 500,
    "inference_failed": 500,
    "overloaded": 503,
    "not_ready": 503,
    "deadline_exceeded": 504,
}
# "application/octet-stream" says nothing about what it is, and many clients send it for a file they don't know.
UNDECLARED = frozenset({"", "application/octet-stream"})
FORM_OVERHEAD_BYTES = 64 * 1024
MODEL_PATH = f"/v2/models/{open_inference.MODEL}"
# Triton's extension for binary tensors: this many bytes of JSON, then the tensors.
BINARY_TENSORS = "inference-header-content-length"

Handler = Callable[[Request], Awaitable[Response]]
ImagesHandler = Callable[[Request, Call], Awaitable[Response]]


class HttpServer:
    """Answers HTTP requests from an ingress."""

    def __init__(self, ingress: Ingress, class_count: int, is_ready: Callable[[], bool]) -> None:
        """Set where images go, the number of classes, and whether every member has answered since the start."""
        self._ingress = ingress
        self._is_ready = is_ready
        self._metadata = open_inference.metadata(class_count)
        self._routes: dict[str, tuple[str, Handler]] = {
            "/classify": ("POST", self._observed(self._classify)),
            "/v2": ("GET", self._server_metadata),
            "/v2/health/live": ("GET", self._live),
            "/v2/health/ready": ("GET", self._ready),
            MODEL_PATH: ("GET", self._model_metadata),
            f"{MODEL_PATH}/ready": ("GET", self._ready),
            f"{MODEL_PATH}/infer": ("POST", self._observed(self._infer)),
            "/docs": ("GET", self._docs),
            "/openapi.json": ("GET", self._openapi),
        }
        # The only version there is may be named.
        for rest in ("", "/ready", "/infer"):
            self._routes[f"{MODEL_PATH}/versions/1{rest}"] = self._routes[MODEL_PATH + rest]

    async def __call__(self, request: Request) -> Response:
        """Dispatch a request; every error, foreseen or not, is answered as JSON."""
        path = request.scope["path"]
        if path not in self._routes:
            return self._error(NotFound(f"there is no {path}; see /docs for what there is"), path)
        method, answer = self._routes[path]
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            refusal = self._error(MethodNotAllowed(f"{path} takes {method}, not {request.method}"), path)
            refusal.headers["Allow"] = "GET, HEAD" if method == "GET" else method
            return refusal
        return await answer(request)

    def _observed(self, handler: ImagesHandler) -> Handler:
        """A handler of images whose calls are followed, and whose every error is answered as JSON."""

        async def answer(request: Request) -> Response:
            path = request.scope["path"]
            known = {"http.request.method": request.method, "http.route": path, "url.path": path, "url.scheme": "http"}
            with self._ingress.observer.call("http", request.headers, known) as call:
                try:
                    response = await handler(request, call)
                except EnsembleError as err:
                    call.fail(err)
                    response = self._error(err, path)
                except ClientDisconnect:
                    call.outcome = "cancelled"
                    response = Response(status_code=499)
                except Exception:
                    logger.exception("failed on %s %s", request.method, path)
                    error = EnsembleError(INTERNAL_HINT)
                    call.fail(error)
                    response = self._error(error, path)
                call.attributes["http.response.status_code"] = response.status_code
                response.headers["traceresponse"] = call.trace.parent
                return response

        return answer

    def _error(self, error: EnsembleError, path: str) -> Response:
        """The answer to a failed request; below /v2 a string, as the protocol has it."""
        status = STATUS[error.code]
        told = f"{error.code}: {error.message}" if path.startswith("/v2") else error.to_dict()
        response = _json({"error": told}, status)
        if status == 503:
            response.headers["Retry-After"] = str(self._ingress.settings.retry_after_s)
        return response

    async def _classify(self, request: Request, call: Call) -> Response:
        options = _query(request)
        # Before a byte of the body is read.
        async with self._ingress.arriving(options.get("timeout_ms")) as arrival:
            media_type = _media_type(request.headers)
            if media_type == "multipart/form-data":
                images = await self._parts(request, arrival)
            else:
                _check_media_type(media_type)
                images = [await _body(request, self._ingress.settings.max_request_bytes, arrival)]
        sent = [image for image in images if isinstance(image, bytes)]
        answers = iter(
            await self._ingress.classify(sent, **options, began=arrival.began, trace=call.trace) if sent else ()
        )
        outcomes: list[Outcome] = [next(answers) if isinstance(image, bytes) else image for image in images]
        if len(outcomes) > 1:
            failed = [outcome for outcome in outcomes if isinstance(outcome, EnsembleError)]
            if failed:
                call.fail(next((error for error in failed if error.is_fault), failed[0]))
            return _json({"results": [_result(outcome) for outcome in outcomes]})
        if isinstance(outcomes[0], EnsembleError):
            raise outcomes[0]
        return _json(outcomes[0].to_dict())

    async def _parts(self, request: Request, arrival: Arrival) -> list[bytes | EnsembleError]:
        """The `image` parts of a form, or, for a part that declares another type, its error."""
        settings = self._ingress.settings
        limit = settings.max_request_bytes
        _check_declared_length(request, limit + FORM_OVERHEAD_BYTES)
        try:
            form = await BoundedParser(request, settings.max_parts, limit + FORM_OVERHEAD_BYTES, arrival).parse()
        except (MultiPartException, KeyError, UnicodeDecodeError) as err:
            raise InvalidParameter(f"the form is malformed: {getattr(err, 'message', err)}") from err
        try:
            if others := sorted({name for name, _ in form.multi_items() if name != "image"}):
                raise InvalidParameter(f"the form has a part {others[0]!r}; name every part 'image'")
            values = form.getlist("image")
            if not values:
                raise InvalidParameter("the form has no part 'image'")
            return [await _part(value) for value in values]
        finally:
            await form.close()

    async def _infer(self, request: Request, call: Call) -> Response:
        async with self._ingress.arriving() as arrival:
            body = await _json_object(request, self._ingress.settings.max_request_bytes, arrival)
        images = self._images(body)
        identifier = _field(body, "id", str, "")
        names = open_inference.check_outputs([_field(output, "name", str) for output in _list(body, "outputs")])
        parameters = open_inference.check_parameters(_field(body, "parameters", dict, {}))
        answers = open_inference.succeeded(
            await self._ingress.classify(
                images, **parameters, probabilities=True, began=arrival.began, trace=call.trace
            )
        )
        outputs = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "data": tensor.data if isinstance(tensor.data, list) else tensor.data.ravel().tolist(),
            }
            for tensor in open_inference.tensors(answers, names)
        ]
        answer: dict[str, Any] = {
            "model_name": open_inference.MODEL,
            "model_version": "1",
            "parameters": open_inference.response_parameters(answers, parameters),
            "outputs": outputs,
        }
        if identifier:
            answer["id"] = identifier
        return _json(answer)

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

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, request: Request) -> Response:
        if not self._is_ready():
            return self._error(NotReady("not every member has answered yet; try again later"), request.scope["path"])
        return _json({"name": open_inference.MODEL, "ready": True})

    async def _server_metadata(self, _: Request) -> Response:
        return _json({"name": open_inference.MODEL, "version": "1", "extensions": []})

    async def _model_metadata(self, _: Request) -> Response:
        return _json(self._metadata)

    async def _openapi(self, _: Request) -> Response:
        return _json(OPENAPI)

    async def _docs(self, _: Request) -> Response:
        return HTMLResponse(DOCS)


class BoundedParser(MultiPartParser):
    """Starlette's parser for forms, with a limit on the whole body and every part kept in memory."""

    def __init__(self, request: Request, max_parts: int, max_bytes: int, arrival: Arrival) -> None:
        """Bound the number of parts and the bytes of the body."""
        # One file more than allowed is let through, so that the ingress refuses it in the words of its limit.
        super().__init__(
            request.headers,
            bounded(request, max_bytes, arrival),
            max_files=max_parts + 1,
            max_fields=16,
            max_part_size=4096,
        )
        self.spool_max_size = max_bytes


def _json(content: Any, status: int = 200) -> Response:
    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, media_type="application/json")


def _result(outcome: Outcome) -> dict[str, Any]:
    return {"error": outcome.to_dict()} if isinstance(outcome, EnsembleError) else outcome.to_dict()


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_media_type(media_type: str) -> None:
    if media_type not in UNDECLARED and not media_type.startswith("image/"):
        raise UnsupportedMediaType(
            f"{media_type!r} is no image; send the file with Content-Type: image/jpeg (or what it is), or without one"
        )


def _query(request: Request) -> dict[str, Any]:
    query = request.query_params
    if not query:
        return {}
    if unknown := sorted(set(query) - open_inference.PARAMETERS):
        raise InvalidParameter(f"there is no parameter {unknown[0]!r}; there are {sorted(open_inference.PARAMETERS)}")
    options: dict[str, Any] = {}
    for name in ("top_k", "timeout_ms"):
        if name in query:
            text = query[name]
            if not text.isascii() or not text.isdigit() or len(text) > 9:
                raise InvalidParameter(f"{name} must be a positive integer; got {text[:40]!r}")
            options[name] = int(text)
    if "members" in query:
        if query["members"].lower() not in {"true", "false", "1", "0"}:
            raise InvalidParameter(f"members must be true or false; got {query['members'][:40]!r}")
        options["members"] = query["members"].lower() in {"true", "1"}
    return options


def _check_declared_length(request: Request, limit: int) -> None:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise ImageTooLarge(f"the request declares {declared} bytes; at most {limit} are accepted")


async def bounded(request: Request, limit: int, arrival: Arrival) -> Any:
    """The request's body, chunk by chunk.

    Raises:
        ImageTooLarge: it exceeds `limit` bytes.
        Overloaded: it exceeds what there is room for.
    """
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit:
            raise ImageTooLarge(f"the request has more than {limit} bytes")
        arrival.grow(len(chunk))
        yield chunk


async def _body(request: Request, limit: int, arrival: Arrival) -> bytes:
    _check_declared_length(request, limit)
    return b"".join([chunk async for chunk in bounded(request, limit, arrival)])


async def _part(value: UploadFile | str) -> bytes | EnsembleError:
    if isinstance(value, str):
        return InvalidParameter("the part 'image' is a text field; send the file itself, with a filename")
    try:
        _check_media_type(_media_type(value.headers))
    except UnsupportedMediaType as err:
        return err
    return await value.read()


async def _json_object(request: Request, limit: int, arrival: Arrival) -> dict[str, Any]:
    if BINARY_TENSORS in request.headers:
        raise UnsupportedMediaType(
            "binary tensors after the JSON are not supported; send base64 in JSON (tritonclient: binary_data=False), "
            "or the file itself to /classify, or use gRPC"
        )
    if (media_type := _media_type(request.headers)) not in {"", "application/json"}:
        raise UnsupportedMediaType(f"{media_type!r} is not application/json")
    try:
        body = json.loads(await _body(request, limit, arrival))
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

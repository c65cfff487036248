"""Dispatches HTTP requests by a table: FastAPI's machinery would cost more than the rest of the ingress."""

from __future__ import annotations

import logging
import math
import time
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from deployments.contract.caller import caller
from deployments.contract.errors import EnsembleError, MethodNotAllowed, NotFound
from deployments.ingress.http import bodies, browsers, leaving, tensorflow_serving
from deployments.ingress.http.classify import Classify
from deployments.ingress.http.documents import Documents
from deployments.ingress.http.open_inference import OpenInference
from deployments.ingress.http.page.live import live
from deployments.ingress.http.page.page import Page
from deployments.ingress.http.routes import AS_OBJECT, AS_TEXT, ErrorStyle, Route, Routes, pattern, plain
from deployments.ingress.http.server_timing import NAME, server_timing
from deployments.ingress.http.shared_memory import SharedMemory
from deployments.ingress.http.tensorflow_serving import TensorFlowServing
from deployments.ingress.ingress import INTERNAL_HINT
from deployments.ingress.refusals import Refusals
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.observe.tracing import Trace

logger = logging.getLogger("ray.serve")

# Refusals of large bodies: so many leave a second, and so many wait for their turn.
LARGE_PACE, MOST_LARGE = 1.0, 32


class HttpServer:
    """Answers HTTP requests; every error, foreseen or not, is answered as JSON."""

    def __init__(self, service: Service) -> None:
        """Set what is served: a protocol is one more entry."""
        self._ingress = service.ingress
        self._access = service.access
        self._headers = service.headers
        self._is_local = service.is_local
        self._refusals = Refusals(least=LARGE_PACE, most=MOST_LARGE)
        self._routes: Routes = {}
        served = Classify, OpenInference, SharedMemory, TensorFlowServing
        for protocol in served:
            self._routes |= protocol(service).routes()
        for extension in service.extensions:
            self._routes |= extension.routes(service)
        self._routes |= live(service)
        self._patterns = {pattern(path): path for path in self._routes if "{" in path}
        self._routes |= Documents(self._routes).routes() | Page(service).routes()

    async def __call__(self, request: Request) -> Response:
        """Answer a request; what is left of a large body that is refused for good is not taken in."""
        unwatched = leaving.is_unwatched(request)
        response = await (leaving.answered(request, self._dispatched) if unwatched else self._dispatched(request))
        refused = 400 <= response.status_code < leaving.LEFT and "Retry-After" not in response.headers
        if refused and bodies.has_large_rest(request):
            response.headers["Connection"] = "close"
            if unwatched:
                # Who is refused sooner comes again sooner. Where Serve takes in the body, it would come meanwhile.
                await self._refusals.hold()
        return response

    async def _dispatched(self, request: Request) -> Response:
        path = request.scope["path"]
        template = path if path in self._routes else self._matching(path, request)
        route = self._routes.get(template)
        if route is None and (error := tensorflow_serving.unknown(path)) is not None:
            return self._error(error, tensorflow_serving.AS_MESSAGE)
        if route is None:
            style = AS_TEXT if path.startswith("/v2") else AS_OBJECT
            return self._error(NotFound(f"there is no {path}; see /docs for what there is"), style)
        if request.method != route.method and not (request.method == "HEAD" and route.method == "GET"):
            refusal = self._error(MethodNotAllowed(f"{path} takes {route.method}, not {request.method}"), route.style)
            refusal.headers["Allow"] = "GET, HEAD" if route.method == "GET" else route.method
            return refusal
        if route.observed:
            return await self._observed(request, route, template)
        return await self._answered(request, route, Call(Trace("")))

    def _matching(self, path: str, request: Request) -> str:
        """The template of a path with names in it, which are then in `request.path_params`; empty if there is none."""
        for known, template in self._patterns.items():
            if (found := known.fullmatch(path)) is not None:
                request.scope["path_params"] = {name: unquote(part) for name, part in found.groupdict().items()}
                return template
        return ""

    async def _observed(self, request: Request, route: Route, template: str) -> Response:
        """The answer to a call that is traced and counted."""
        known = {
            "http.request.method": request.method,
            "http.route": template,
            "url.path": request.scope["path"],
            "url.scheme": "http",
            # The client's own, or HAProxy's or Serve's; Serve answers with it and notes it in its logs.
            "ensemble.request.id": request.headers.get("x-request-id", ""),
        }
        with self._ingress.observer.call("http", request.headers, known) as call:
            response = await self._answered(request, route, call)
            call.attributes["http.response.status_code"] = response.status_code
            response.headers["traceresponse"] = call.trace.parent
            response.headers[NAME] = server_timing(time.perf_counter() - call.started, call.trace.way)
            return response

    async def _answered(self, request: Request, route: Route, call: Call) -> Response:
        try:
            hosts = self._ingress.settings.hosts
            browsers.check_host(request.headers, hosts, self._is_local)
            if route.may_change:
                browsers.check_origin(request.headers, hosts)
            name = ""
            if self._access is not None and not route.open:
                name = self._access.admit(request.headers.get("authorization"))
            call.caller = caller(request.headers, name, self._ingress.settings.fair_by, self._headers)
            return await route.handler(request, call)
        except EnsembleError as err:
            call.fail(err)
            return self._error(err, route.style)
        except ClientDisconnect:
            call.outcome = "cancelled"
            return Response(status_code=leaving.LEFT)
        except Exception:
            traced = call.trace.parent[3:35]
            logger.exception("failed on %s %s; trace %s", request.method, request.scope["path"], traced)
            error = EnsembleError(INTERNAL_HINT)
            call.fail(error)
            return self._error(error, route.style)

    def _error(self, error: EnsembleError, style: ErrorStyle) -> Response:
        """The answer to a failed request."""
        response = plain(style.tell(error), style.status(error))
        response.headers.update(error.headers)
        if error.retry:
            response.headers["Retry-After"] = str(
                math.ceil(error.retry_after_s or self._ingress.settings.retry_after_s)
            )
        return response

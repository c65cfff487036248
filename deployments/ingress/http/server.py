"""Dispatches HTTP requests by a table: FastAPI's machinery would cost more than the rest of the ingress."""

import asyncio
import logging
import math
import os
import time

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from deployments.contract.caller import REQUEST_IDS
from deployments.contract.errors import (
    INTERNAL_HINT,
    EnsembleError,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    TooManyRequests,
)
from deployments.contract.hosts import RAY_METRICS_SETTING, host_address, is_in_cluster
from deployments.contract.item import QUEUE, TRACE_ID, Timeline
from deployments.ingress.error_style import ErrorStyle
from deployments.ingress.headers import caller, check_host, check_once, check_origin
from deployments.ingress.http import cors, documents
from deployments.ingress.http.bodies import has_large_rest
from deployments.ingress.pacing import RejectionPacer
from deployments.ingress.protocol import Protocol, Service, merged
from deployments.ingress.routes import Route, plain
from deployments.observe.observer import Call, Trace

logger = logging.getLogger("ray.serve")

METRICS = "/metrics"
# HAProxy says here whether the client spoke TLS, and replaces what a client says.
FORWARDED_PROTOCOL = "x-forwarded-proto"
# In a request's scope, the task that answers it.
TASK = "ensemble.task"
REQUEST_ID, _ = REQUEST_IDS
# Refusals of large bodies: how many leave per second, and how many wait for their turn.
LARGE_PACE, MOST_LARGE = 1.0, 32
# The status of an answer that nobody waits for any more: nginx' "client closed request".
LEFT = 499
# A browser's developer tools draw it: https://www.w3.org/TR/server-timing/.
TIMING = b"server-timing"


class HttpServer:
    """Answers HTTP requests; every error, foreseen or not, is answered as JSON.

    Attributes:
        in_flight: requests to the ASGI application that are not answered yet.
    """

    def __init__(self, service: Service) -> None:
        """Set the protocols to serve."""
        self._ingress, self._access, self._headers = service.ingress, service.access, service.headers
        self._is_local = service.is_local
        # The longest beginning first.
        self._protocols = sorted(service.protocols, key=lambda each: len(each.prefix), reverse=True)
        routes = service.routes
        self._patterns = {compile_path(path)[0]: path for path in routes if "{" in path}
        self._routes = merged([routes, documents.routes(routes)])
        self._refusals = RejectionPacer(least=LARGE_PACE, most=MOST_LARGE)
        self.in_flight = 0

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application, unless its client disconnects before."""
        request, scope[TASK] = Request(scope, receive), asyncio.current_task()
        self.in_flight += 1
        try:
            response = await self(request)
            # A client that is refused for good, before its large body was read to its end, would come again at once.
            is_final = 400 <= response.status_code < LEFT and "Retry-After" not in response.headers
            if is_final and has_large_rest(request):
                await self._refusals.hold()
            if (number := request.headers.get(REQUEST_ID)) is not None:
                response.raw_headers.append((REQUEST_ID.encode(), number.encode("latin-1")))
            await response(scope, receive, send)
        except asyncio.CancelledError:
            # Nobody waits for the answer; uvicorn would log the exception.
            return
        finally:
            self.in_flight -= 1

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        path = request.scope["path"]
        template = path if path in self._routes else self._matching(path, request)
        route = self._routes.get(template)
        if route is None:
            return self._shared(request, self._not_found(path))
        if request.method == "OPTIONS" and cors.ASKED_METHOD in request.headers:
            return self._preflight(request, route)
        if request.method != route.method and not (request.method == "HEAD" and route.method == "GET"):
            refusal = self._error(MethodNotAllowed(f"{path} takes {route.method}, not {request.method}"), route.style)
            refusal.headers["Allow"] = "GET, HEAD" if route.method == "GET" else route.method
            return refusal
        if not route.observed:
            return await self._answered(request, route, Call(Trace("")))
        known = {
            "http.request.method": request.method,
            "http.route": template,
            "url.path": path,
            "url.scheme": "https" if request.headers.get(FORWARDED_PROTOCOL) == "https" else "http",
            "ensemble.request.id": request.headers.get("x-request-id", ""),
        }
        with self._ingress.observer.call("http", request.headers, known) as call:
            response = await self._answered(request, route, call)
            call.attributes["http.response.status_code"] = response.status_code
            timing = server_timing(time.perf_counter() - call.started, call.trace.timeline)
            # Not by `headers`, which looks each time whether it has the name.
            response.raw_headers += [(b"traceresponse", call.trace.parent.encode()), (TIMING, timing.encode())]
            return response

    def _matching(self, path: str, request: Request) -> str:
        """Return the template that matches a path and set `request.path_params` to its names; empty if none matches."""
        for known, template in self._patterns.items():
            if (found := known.match(path)) is not None:
                request.scope["path_params"] = found.groupdict()
                return template
        return ""

    def _not_found(self, path: str) -> Response:
        """Answer a request for an unknown path, as the protocol has it whose path it would be."""
        protocol = next((each for each in self._protocols if path.startswith(each.prefix)), Protocol())
        if path == METRICS:
            return self._error(NotFound(f"there is no {path} on this port; {where_metrics_are()}"), protocol.style)
        return self._error(protocol.not_found(path), protocol.style)

    def _preflight(self, request: Request, route: Route) -> Response:
        """Answer a browser that asks whether a page of another origin may send a request."""
        try:
            response = cors.preflight(request.headers, route.method, self._ingress.settings.origins)
        except EnsembleError as err:
            response = self._error(err, route.style)
        return self._shared(request, response)

    def _shared(self, request: Request, response: Response) -> Response:
        """Let a page of another origin read an answer, if the page's origin is listed."""
        if origins := self._ingress.settings.origins:
            cors.share(response, request.headers, origins)
        return response

    async def _answered(self, request: Request, route: Route, call: Call) -> Response:
        try:
            settings = self._ingress.admission.settings
            check_once(request.headers.keys())
            if self._is_local or settings.hosts is not None:
                check_host(request.headers, settings.hosts or ())
            # A request that may change something.
            if route.method != "GET":
                check_origin(request.headers, settings.hosts, settings.origins)
            name = ""
            if self._access is not None and not route.open:
                name = self._access.admit(request.headers.get("authorization"))
            call.caller = caller(request.headers, name, settings.fair_by, self._headers)
            response = await route.handler(request, call)
            if settings.origins:
                cors.share(response, request.headers, settings.origins)
            return response
        except EnsembleError as err:
            error = err
        except ClientDisconnect:
            call.outcome = "cancelled"
            return Response(status_code=LEFT)
        except Exception:
            path, trace = request.scope["path"], call.trace.parent[TRACE_ID]
            ids = {"trace_ids": [trace]}
            logger.exception("failed on %s %s; trace %s", request.method, path, trace, extra=ids)
            error = EnsembleError(INTERNAL_HINT)
        call.fail(error)
        return self._shared(request, self._error(error, route.style))

    def _error(self, error: EnsembleError, style: ErrorStyle) -> Response:
        """Make the answer to a failed request."""
        if isinstance(error, Overloaded) and self._ingress.settings.overload_status == TooManyRequests.http_status:
            error = TooManyRequests(error.message, retry_after_s=error.retry_after_s)
        response = plain(style.tell(error), style.status(error))
        response.headers.update(error.headers)
        if error.retry:
            seconds = error.retry_after_s or self._ingress.settings.retry_after_s
            response.headers["Retry-After"] = str(math.ceil(seconds))
        return response


def where_metrics_are() -> str:
    """Tell in words where this machine's Ray exports metrics for Prometheus."""
    if port := os.environ.get(RAY_METRICS_SETTING):
        where = "" if is_in_cluster() else " of the server's machine"
        return f"Prometheus metrics are at http://{host_address()}:{port}{METRICS}{where}"
    return "Ray exports Prometheus metrics; their addresses are in prom_metrics_service_discovery.json in Ray's folder"


def server_timing(total_s: float, timeline: Timeline | None) -> str:
    """Write the header: the whole call, then each stage of its image; of several images, the last image to return."""
    metrics = [f"total;dur={total_s * 1000:.3f}"]
    if timeline is not None:
        metrics.append(f"{QUEUE};dur={(timeline.left_ns - timeline.queued_ns) / 1e6:.3f}")
        for note in (step.note for step in timeline.steps):
            # A name is a token, which has no space.
            metrics.append(f"{note.node.replace(' ', '-')};dur={(note.end_ns - note.start_ns) / 1e6:.3f}")
    return ", ".join(metrics)

"""Web pages of other origins that may send requests and read the answers.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Collection, Mapping

from starlette.responses import Response

from deployments.contract.hosts import ANY
from deployments.ingress.headers import check_origin

# The header of a question before a request, and of the headers that the page would send.
ASKED_METHOD, ASKED_HEADERS = "access-control-request-method", "access-control-request-headers"
# Headers of answers that a page may read besides those that it always may.
EXPOSED = "X-Request-Id, Retry-After, Server-Timing, traceresponse, Age, Inference-Header-Content-Length"
# How long browsers keep the answer to a question, seconds; Chromium keeps none longer.
KEPT_S = 7200


def preflight(headers: Mapping[str, str], method: str, origins: Collection[str]) -> Response:
    """Answer a browser's question whether a page may send a request by a path's method.

    Raises:
        Forbidden: the page's origin is not listed.
    """
    check_origin(headers, None, origins)
    allowed = {
        "Access-Control-Allow-Methods": method,
        "Access-Control-Allow-Headers": headers.get(ASKED_HEADERS, ""),
        "Access-Control-Max-Age": str(KEPT_S),
    }
    return Response(status_code=204, headers=allowed)


def share(response: Response, headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Let the page that a request is for read the answer, if the page's origin is listed."""
    if ANY in origins:
        response.headers["Access-Control-Allow-Origin"] = ANY
    else:
        # A cache must keep the answers for different pages apart.
        response.headers.add_vary_header("Origin")
        if (origin := headers.get("origin")) not in origins:
            return
        response.headers["Access-Control-Allow-Origin"] = str(origin)
    response.headers["Access-Control-Expose-Headers"] = EXPOSED

"""A path of HTTP: its handler, and what the OpenAPI document says about it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract import errors
from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle
from deployments.observe.observer import Call

# A model's place in the OpenAPI document.
REFERENCE = "#/components/schemas/{name}"
Handler = Callable[[Request, Call], Awaitable[Response]]
Routes = dict[str, "Route"]

# What can go wrong with any request that a key may be needed for.
OF_KEYS: tuple[type[EnsembleError], ...] = (errors.Unauthenticated, errors.RateLimited)
# What can go wrong with a request that has a body.
OF_ARRIVING: tuple[type[EnsembleError], ...] = (
    *OF_KEYS,
    errors.OverShare,
    errors.ImageTooLarge,
    errors.UnsupportedMediaType,
    errors.InvalidParameter,
    errors.SlowBody,
    errors.Overloaded,
    errors.DeadlineExceeded,
)
# What can go wrong with a request for a classification.
OF_CLASSIFYING: tuple[type[EnsembleError], ...] = (
    *OF_ARRIVING,
    errors.InvalidImage,
    errors.InferenceFailed,
    errors.NotReady,
    errors.NoReplica,
    errors.RemoteUnavailable,
    errors.Unloaded,
)


@dataclass(frozen=True)
class Route:
    """A path.

    Attributes:
        method: `GET`, which answers `HEAD` too, or `POST`.
        handler: answers a request; every `EnsembleError` that it raises is answered.
        summary: its title in the OpenAPI document; empty for a path that is not in it, such as a file of a page.
        answers: the models that its JSON may have; none for another type.
        errors: what can go wrong.
        style: the form of its errors.
        query: the model of its query.
        body: by media type, the model or the JSON schema of the request's body.
        observed: whether its calls are traced and counted.
        open: whether it needs no key where others do.
        is_on: whether the settings allow it; otherwise the OpenAPI document of the server leaves it out.
    """

    method: str
    handler: Handler
    summary: str
    answers: tuple[Any, ...] = ()
    errors: tuple[type[EnsembleError], ...] = ()
    style: ErrorStyle = AS_OBJECT
    query: type[msgspec.Struct] | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    observed: bool = False
    open: bool = False
    is_on: Callable[[], bool] = lambda: True

    @property
    def may_change(self) -> bool:
        """Whether a request may change something, and so is refused to pages of other origins: all but `GET`."""
        return self.method != "GET"

    @property
    def failures(self) -> tuple[type[EnsembleError], ...]:
        """What can go wrong with a request here, and with one to any path."""
        everywhere = (errors.MisdirectedRequest, errors.Forbidden) if self.may_change else (errors.MisdirectedRequest,)
        return tuple(dict.fromkeys((*self.errors, *everywhere)))


def aged(response: Response, outcomes: Sequence[Answer | EnsembleError]) -> Response:
    """Add the header `Age`, the age of the oldest image in seconds, if a cache had every image of the answer."""
    found = [outcome.classification.cache for outcome in outcomes if isinstance(outcome, Answer)]
    ages = [cache.age_s for cache in found if cache is not None and cache.age_s is not None]
    if ages and len(ages) == len(outcomes):
        response.headers["Age"] = str(int(max(ages)))
    return response


def unlisted(routes: Routes) -> Routes:
    """Leave routes out of the OpenAPI document: they are other names of paths that it has."""
    return {path: replace(route, summary="") for path, route in routes.items()}


def encoded(content: Any) -> Response:
    """Encode content of typed models as JSON."""
    return Response(msgspec.json.encode(content), media_type="application/json")


def plain(content: Any, status: int = 200) -> Response:
    """Encode content of plain types as JSON; unlike `encoded`, this allows a client's text of half a character."""
    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, media_type="application/json")

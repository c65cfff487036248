"""The paths of HTTP and the methods of gRPC that protocols and extensions serve, each with its handler."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract import errors
from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Call

JSON = "application/json"
# A model's place in the OpenAPI document.
REFERENCE = "#/components/schemas/{name}"
Handler = Callable[[Request, Call], Awaitable[Response]]
# By path.
Routes = dict[str, "Route"]
# By `<service>/<method>`.
Calls = dict[str, "Rpc"]
# What a call is answered by: a message, or the messages of a stream.
Answered = Message | AsyncIterator[Message]
# Fields of a message: an image or a true label takes a few; names, shapes, parameters and requested outputs take the
# rest.
FIELDS_PER_PART, FIELDS_BESIDES = 8, 1024

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
        summary: its title in the OpenAPI document; empty for a path that is not in it, such as a file.
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
    def failures(self) -> tuple[type[EnsembleError], ...]:
        """What can go wrong with a request here, and with one to any path."""
        # What may change something is refused to pages of other origins.
        by_page = () if self.method == "GET" else (errors.Forbidden,)
        return tuple(dict.fromkeys((*self.errors, errors.MisdirectedRequest, *by_page)))


@dataclass(frozen=True)
class Rpc:
    """A method of gRPC.

    Attributes:
        handler: answers a request; every `EnsembleError` that it raises is answered as a status.
        observed: whether its calls are traced and counted.
        is_open: whether it needs no key where others do.
        fields: how many fields a request may have.
    """

    handler: Callable[[Any, Call], Awaitable[Answered]]
    observed: bool = False
    is_open: bool = False
    fields: Callable[[IngressSettings], int] = lambda settings: max_fields(settings.max_parts)


def max_fields(parts: int) -> int:
    """Return the number of fields that a request may have with `parts` images or labels."""
    return FIELDS_PER_PART * parts + FIELDS_BESIDES


def aged(response: Response, outcomes: Sequence[Answer | EnsembleError]) -> Response:
    """Add the header `Age`, the age of the oldest image in seconds, if predictions of every image were kept."""
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
    return Response(msgspec.json.encode(content), media_type=JSON)


def plain(content: Any, status: int = 200) -> Response:
    """Encode content of plain types as JSON; unlike `encoded`, this allows a client's text of half a character."""
    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, media_type=JSON)

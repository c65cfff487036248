"""True labels as clients send them: by `POST /feedback`, and by gRPC's `ensemble.FeedbackService`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from google.protobuf.message import Message
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.caller import MAX_ID
from deployments.contract.errors import AlreadyLabelled, EnsembleError, InvalidParameter, UnknownLabel, UnknownRequest
from deployments.contract.settings import MIB
from deployments.ingress.error_style import AS_OBJECT
from deployments.ingress.http import bodies
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_ARRIVING, Calls, Route, Routes, Rpc, encoded, max_fields
from deployments.observe.observer import Call
from ensemble_features.feedback import feedback_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["FeedbackService"]
PATH = "/feedback"
LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})
MAX_BYTES = MIB
FORM = '{"request_id": "...", "label": "..."}, on one line; and "index" of an image after the first'
# Labels, and lines with the empty ones, in one request; the highest position of an image in its request.
MAX_LABELS, MAX_LINES, MAX_PLACE = 4096, 2 * 4096, 100_000

# Takes a label by the request's id, the class, the image's position, and the name of the caller's key, empty for none;
# raises as `FeedbackStore.take`.
TakesLabel = Callable[[str, str | int, int, str], Awaitable[None]]
T = TypeVar("T")


class TrueLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The true class of an image."""

    request_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID, description="`X-Request-Id` of the answer")]
    label: Annotated[str | int, Meta(description="the class' name, or its index")]
    index: Annotated[int, Meta(ge=0, le=MAX_PLACE, description="of the image in its request")] = 0


async def refuse(*_: object) -> None:
    """Raise UnknownRequest."""
    raise UnknownRequest("no labels are taken; configure `feedback`")


def check_labels(count: int) -> None:
    """Raise InvalidParameter if a request can't hold so many labels."""
    if not 1 <= count <= MAX_LABELS:
        raise InvalidParameter(f"a request holds 1 to {MAX_LABELS} labels; this one has {count}")


async def taken(
    take: TakesLabel, read: Callable[[T], TrueLabel], sent: Sequence[T], key: str
) -> list[EnsembleError | None]:
    """Take labels in order, each as `read` reads it, for the key of that name; returns the error of each, or None.

    Raises:
        InvalidParameter: there are none, or too many.
    """
    check_labels(len(sent))
    results: list[EnsembleError | None] = []
    for each in sent:
        try:
            found = read(each)
            await take(found.request_id, found.label, found.index, key)
            results.append(None)
        except EnsembleError as err:
            results.append(err.with_traceback(None))
    return results


class Accepted(msgspec.Struct, frozen=True):
    """How many labels were taken."""

    accepted: int


class AcceptedLines(Accepted, frozen=True):
    """How many labels were taken, and the result of each line, in order."""

    results: list[Any]


DECODER = msgspec.json.Decoder(TrueLabel)


def routes(ingress: Ingress, take: TakesLabel) -> Routes:
    """Make the one path; the ingress admits the requests, and `take` takes the labels."""

    async def handler(request: Request, call: Call) -> Response:
        body, _ = await bodies.document(request, ingress.admission, call.caller, bodies.Limit(MAX_BYTES))
        # Before a million empty lines are made.
        if body.count(b"\n") > MAX_LINES:
            raise InvalidParameter(f"a request holds at most {MAX_LINES} lines, the empty ones included")
        lines = [line for line in body.split(b"\n") if line.strip()]
        is_one = bodies.media_type(request.headers) not in LINES and len(lines) <= 1
        errors = await taken(take, _from_json, [body] if is_one else lines, call.caller.name)
        if not is_one:
            results = [{"accepted": True} if error is None else AS_OBJECT.tell(error) for error in errors]
            return encoded(AcceptedLines(errors.count(None), results))
        if errors[0] is not None:
            raise errors[0]
        return encoded(Accepted(1))

    return {
        PATH: Route(
            "POST",
            handler,
            "Send the true label of an image, or of many, one per line",
            (Accepted, AcceptedLines),
            (*OF_ARRIVING, UnknownLabel, UnknownRequest, AlreadyLabelled),
            body={"application/json": TrueLabel, "application/x-ndjson": {"type": "string"}},
        )
    }


def _from_json(document: bytes) -> TrueLabel:
    try:
        return DECODER.decode(document)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as err:
        raise InvalidParameter(f"a label is JSON, {FORM}: {err}") from err


class FeedbackService(Protocol):
    """Takes labels in every application; without the feature it refuses them."""

    services = (SERVICE,)

    def calls(self, service: Service) -> Calls:
        """Return the one method."""
        return calls(service.handles.get("feedback", refuse))


def calls(take: TakesLabel) -> Calls:
    """Return the service's one method; `take` takes the labels."""

    async def handler(request: pb.LabelRequest, call: Call) -> Message:
        errors = await taken(take, _from_message, request.labels, call.caller.name)
        if len(errors) > 1:
            return pb.LabelResponse(accepted=errors.count(None), results=map(_result, errors))
        if errors[0] is not None:
            raise errors[0]
        return pb.LabelResponse(accepted=1)

    return {f"{SERVICE.full_name}/Label": Rpc(handler, fields=lambda _: max_fields(MAX_LABELS))}


def _result(error: EnsembleError | None) -> pb.LabelResponse.Result:
    result = pb.LabelResponse.Result
    return result() if error is None else result(code=error.code, message=error.message)


def _from_message(sent: pb.TrueLabel) -> TrueLabel:
    which = sent.WhichOneof("label")
    if which is None:
        raise InvalidParameter("a label has the class' `name` or its `index`")
    label = {"request_id": sent.request_id, "label": getattr(sent, which), "index": sent.image}
    try:
        return msgspec.convert(label, TrueLabel)
    except msgspec.ValidationError as err:
        raise InvalidParameter(f"a label has a `request_id` and the position of its `image`: {err}") from err

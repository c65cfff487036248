"""Seldon's v1 API as a protocol of the server, and its feedback, which the feature `feedback` takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import AlreadyLabelled, InvalidParameter, UnknownLabel, UnknownRequest
from deployments.ingress.http import bodies
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_ARRIVING, Calls, Route, Routes, Rpc, encoded
from deployments.observe.observer import Call
from ensemble_rollout.feedback.labels import TakesLabel, TrueLabel, refuse, taken
from ensemble_seldon import grpc, http
from ensemble_seldon import seldon_pb2 as pb
from ensemble_seldon.graph import check_puid
from ensemble_seldon.grpc import SELDON, lists
from ensemble_seldon.http import AS_STATUS, PREFIX, TITLE, Meta, SeldonMessage

PATH = f"{PREFIX}v1.0/feedback"
NEEDED = (
    "feedback needs 'truth', with a label for each image: an index, a name or a row with 1 for its class and 0 for the "
    "others, in a tensor or an ndarray; or strData"
)


class Labelled(msgspec.Struct):
    """A message of which only the id is used."""

    meta: Meta = msgspec.field(default_factory=Meta)


class Feedback(msgspec.Struct):
    """The true labels of an answer's images; the answer has its request's id, and a reward is not used."""

    truth: SeldonMessage = msgspec.field(default_factory=SeldonMessage)
    request: Labelled = msgspec.field(default_factory=Labelled)
    response: Labelled = msgspec.field(default_factory=Labelled)
    reward: float = 0.0


def feedback_routes(ingress: Ingress, take: TakesLabel, classes: int, is_on: bool = True) -> Routes:
    """Return the one path; the ingress admits the requests, and `take` takes the labels, of `classes` classes."""

    async def handler(request: Request, call: Call) -> Response:
        # A client sends its request and the answer along.
        body, _ = await bodies.document(request, ingress.capacity, call.caller)
        given = bodies.parsed(body, Feedback)
        data = given.truth.data
        if given.truth.str_data is not None:
            labels: Sequence[Any] = [given.truth.str_data]
        else:
            labels = (data and (data.ndarray or (data.tensor and _rows(data.tensor.shape, data.tensor.values)))) or []
        puid = given.response.meta.puid or given.request.meta.puid
        await _take(take, puid, labels, classes, call)
        return encoded(SeldonMessage(Meta(puid)))

    errors = (*OF_ARRIVING, UnknownLabel, UnknownRequest, AlreadyLabelled)
    summary = f"{TITLE}: send the true labels of images"
    body = {"application/json": Feedback}
    return {PATH: Route("POST", handler, summary, (SeldonMessage,), errors, AS_STATUS, body=body, is_on=lambda: is_on)}


def feedback_calls(take: TakesLabel, classes: int) -> Calls:
    """Make the method; `take` takes the labels, of `classes` classes."""

    async def handler(request: pb.Feedback, call: Call) -> Message:
        data, truth = request.truth.data, request.truth
        if truth.HasField("strData"):
            labels: Sequence[Any] = [truth.strData]
        else:
            labels = lists(data.ndarray) or _rows(data.tensor.shape, data.tensor.values)
        puid = request.response.meta.puid or request.request.meta.puid
        await _take(take, puid, labels, classes, call)
        return pb.SeldonMessage(meta={"puid": puid})

    return {f"{SELDON.full_name}/SendFeedback": Rpc(handler, fields=lambda settings: settings.max_elements)}


def _rows(shape: Sequence[int], values: Sequence[float]) -> list[Any]:
    """Return the rows of a tensor, or its values if it has one in each row."""
    if shape and math.prod(shape) != len(values):
        raise InvalidParameter(f"the truth's tensor has {len(values)} values; its shape is another")
    width = shape[-1] if len(shape) > 1 else 1
    return [list(values[start : start + width]) for start in range(0, len(values), width)] if width > 1 else [*values]


def _class(row: list[Any], classes: int) -> Any:
    """Return the label in a row of its own, or the index of the class with a 1."""
    if len(row) == 1:
        return row[0]
    if len(row) != classes or row.count(1) != 1 or row.count(0) != classes - 1:
        raise InvalidParameter(f"{NEEDED}; there are {classes} classes")
    return row.index(1)


async def _take(take: TakesLabel, puid: str, labels: Sequence[Any], classes: int, call: Call) -> None:
    """Take the labels in order; raises the first error, and the others are taken."""
    check_puid(puid)
    if not labels:
        raise InvalidParameter(NEEDED)

    def read(sent: tuple[int, Any]) -> TrueLabel:
        place, label = sent
        label = _class(label, classes) if isinstance(label, list) else label
        # A tensor's indices are doubles.
        label = int(label) if isinstance(label, float) and label.is_integer() else label
        try:
            return msgspec.convert({"request_id": puid, "label": label, "index": place}, TrueLabel)
        except msgspec.ValidationError as err:
            raise InvalidParameter(f"{NEEDED}; and 'response' with the answer's meta.puid: {err}") from err

    errors = await taken(take, read, list(enumerate(labels)), call.caller.name)
    for error in errors:
        if error is not None:
            raise error


class Seldon(Protocol):
    """Takes images and true labels; the labels only where the feature `feedback` is on."""

    prefix, style = PREFIX, AS_STATUS
    services = (SELDON,)
    # TensorFlow Serving's `PredictionService` has a `Predict`, too.
    behind_serve = False
    large = (f"{SELDON.full_name}/Predict", f"{SELDON.full_name}/SendFeedback")

    def routes(self, service: Service) -> Routes:
        """Return the paths for images and for labels."""
        take, is_on = service.handles.get("feedback", refuse), not service.not_serving
        return http.routes(service) | feedback_routes(service.ingress, take, len(service.labels), is_on)

    def calls(self, service: Service) -> Calls:
        """Return the methods for images and for labels."""
        take = service.handles.get("feedback", refuse)
        return grpc.calls(service) | feedback_calls(take, len(service.labels))

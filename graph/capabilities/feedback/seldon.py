"""Seldon's feedback: `POST /api/v1.0/feedback`, and `SendFeedback` of `seldon.protos.Seldon`. See `POST /feedback`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import AlreadyLabelled, InvalidParameter, UnknownLabel, UnknownRequest
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.grpc.seldon import lists
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import OF_ARRIVING, Route, Routes, encoded
from deployments.ingress.http.seldon import AS_STATUS, PREFIX, TITLE, Meta, SeldonMessage
from deployments.ingress.ingress import Ingress
from deployments.ingress.seldon import check_puid
from deployments.observe.observer import Call
from deployments.protocol import seldon_pb2 as pb
from graph.capabilities.feedback.labels import TakesLabel, TrueLabel, taken

PATH = f"{PREFIX}v1.0/feedback"
NEEDED = "feedback needs 'truth', with a label for each image: an index or a name in a tensor or an ndarray, or strData"


class Labelled(msgspec.Struct):
    """A message of which only the id is used."""

    meta: Meta = msgspec.field(default_factory=Meta)


class Feedback(msgspec.Struct):
    """The true labels of an answer's images; the answer has its request's id, and a reward is not used."""

    truth: SeldonMessage = msgspec.field(default_factory=SeldonMessage)
    request: Labelled = msgspec.field(default_factory=Labelled)
    response: Labelled = msgspec.field(default_factory=Labelled)
    reward: float = 0.0


def routes(ingress: Ingress, take: TakesLabel) -> Routes:
    """The one path; the ingress admits the requests, and `take` takes the labels."""

    async def handler(request: Request, call: Call) -> Response:
        # A client sends its request and the answer along.
        body, _ = await bodies.document(request, ingress.capacity, call.caller)
        given = bodies.parsed(body, Feedback)
        data = given.truth.data
        if given.truth.str_data is not None:
            labels: Sequence[Any] = [given.truth.str_data]
        else:
            labels = (data and (data.ndarray or (data.tensor and data.tensor.values))) or []
        puid = given.response.meta.puid or given.request.meta.puid
        await _take(take, puid, labels, call)
        return encoded(SeldonMessage(Meta(puid)))

    errors = (*OF_ARRIVING, UnknownLabel, UnknownRequest, AlreadyLabelled)
    summary = f"{TITLE}: send the true labels of images"
    body = {"application/json": Feedback}
    return {PATH: Route("POST", handler, summary, (SeldonMessage,), errors, AS_STATUS, body=body)}


def calls(take: TakesLabel) -> Calls:
    """The method; `take` takes the labels."""

    async def handler(request: pb.Feedback, call: Call) -> Message:
        data, truth = request.truth.data, request.truth
        labels: Sequence[Any] = [truth.strData] if truth.HasField("strData") else data.tensor.values
        if truth.HasField("data") and data.HasField("ndarray"):
            labels = lists(data.ndarray)
        puid = request.response.meta.puid or request.request.meta.puid
        await _take(take, puid, labels, call)
        return pb.SeldonMessage(meta={"puid": puid})

    return {"SeldonSendFeedback": Rpc(handler, fields=lambda settings: settings.max_elements)}


async def _take(take: TakesLabel, puid: str, labels: Sequence[Any], call: Call) -> None:
    """Take the labels in order; raises the first error, and the others are taken."""
    check_puid(puid)
    if not labels:
        raise InvalidParameter(NEEDED)

    def read(sent: tuple[int, Any]) -> TrueLabel:
        place, label = sent
        # Of shape [N,1] each is in a list of its own, and a tensor's indices are doubles.
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        label = int(label) if isinstance(label, float) and label.is_integer() else label
        try:
            return msgspec.convert({"request_id": puid, "label": label, "index": place}, TrueLabel)
        except msgspec.ValidationError as err:
            raise InvalidParameter(f"{NEEDED}; and 'response' with the answer's meta.puid: {err}") from err

    errors = await taken(take, read, list(enumerate(labels)), call.caller.name)
    for error in errors:
        if error is not None:
            raise error

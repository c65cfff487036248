"""`POST /feedback`: the true label of an image that was answered, or many labels, one per line."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import AlreadyLabelled, InvalidParameter, UnknownLabel, UnknownRequest
from deployments.contract.settings import MIB
from deployments.ingress.error_style import AS_OBJECT
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import OF_ARRIVING, Route, Routes, encoded
from deployments.ingress.ingress import Ingress
from deployments.observe.observer import Call
from graph.features.feedback.labels import TakesLabel, TrueLabel, taken

PATH = "/feedback"
LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})
MAX_BYTES = MIB
FORM = '{"request_id": "...", "label": "..."}, on one line; and "index" of an image after the first'


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
        body, _ = await bodies.document(request, ingress.capacity, call.caller, bodies.Limit(MAX_BYTES))
        lines = [line for line in body.split(b"\n") if line.strip()]
        is_one = bodies.media_type(request.headers) not in LINES and len(lines) <= 1
        errors = await taken(take, _read, [body] if is_one else lines, call.caller.name)
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


def _read(document: bytes) -> TrueLabel:
    try:
        return DECODER.decode(document)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as err:
        raise InvalidParameter(f"a label is JSON, {FORM}: {err}") from err

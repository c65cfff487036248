"""`POST /feedback`: the true label of an image that was answered, or one a line of many."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import AlreadyLabelled, EnsembleError, InvalidParameter, UnknownLabel, UnknownRequest
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import AS_OBJECT, OF_ARRIVING, Route, Routes, encoded
from deployments.ingress.ingress import Ingress
from deployments.observe.observer import Call
from graph.capabilities.feedback.store import LONGEST_ID, MOST_LABELS, MOST_PLACE, TakesLabel

PATH = "/feedback"
LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})
MOST_BYTES = 1024 * 1024


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an image truly is."""

    request_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_ID, description="`X-Request-Id` of the answer")]
    label: Annotated[str | int, Meta(description="the class' name, or its index")]
    index: Annotated[int, Meta(ge=0, le=MOST_PLACE, description="of the image in its request")] = 0


class Accepted(msgspec.Struct, frozen=True):
    """How many labels were taken."""

    accepted: int


class AcceptedLines(Accepted, frozen=True):
    """How many labels were taken, and of each line in order what became of it."""

    results: list[Any]


DECODER = msgspec.json.Decoder(Feedback)


class HttpFeedback:
    """Answers `/feedback`."""

    def __init__(self, ingress: Ingress, take: TakesLabel) -> None:
        """Set what admits requests, and what takes labels."""
        self._ingress, self._take = ingress, take

    def routes(self) -> Routes:
        """The one path."""
        return {
            PATH: Route(
                "POST",
                self._answer,
                "Tell what an image truly is, or of many one a line",
                (Accepted, AcceptedLines),
                (*OF_ARRIVING, UnknownLabel, UnknownRequest, AlreadyLabelled),
                body={"application/json": Feedback, "application/x-ndjson": {"type": "string"}},
            )
        }

    async def _answer(self, request: Request, call: Call) -> Response:
        async with self._ingress.arriving(by=call.caller) as arrival:
            body = await bodies.document(request, MOST_BYTES, arrival)
        lines = [line for line in body.split(b"\n") if line.strip()]
        if bodies.media_type(request.headers) not in LINES and len(lines) <= 1:
            await self._taken(body, call.caller.name)
            return encoded(Accepted(1))
        if len(lines) > MOST_LABELS:
            raise InvalidParameter(f"there are {len(lines)} lines; send at most {MOST_LABELS} at once")
        results = [await self._told(line, call.caller.name) for line in lines]
        return encoded(AcceptedLines(sum("accepted" in result for result in results), results))

    async def _told(self, line: bytes, key: str) -> dict[str, Any]:
        try:
            await self._taken(line, key)
        except EnsembleError as err:
            told: dict[str, Any] = AS_OBJECT.tell(err)
            return told
        return {"accepted": True}

    async def _taken(self, document: bytes, key: str) -> None:
        try:
            told = DECODER.decode(document)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as err:
            wanted = '{"request_id": "...", "label": "..."}, on one line; and "index" of an image after the first'
            raise InvalidParameter(f"a label is JSON, {wanted}: {err}") from err
        await self._take(told.request_id, told.label, told.index, key)

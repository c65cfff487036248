"""`POST /classify`: an image as the body, or several in a form; this project's own way to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Classification
from deployments.contract.errors import EnsembleError
from deployments.contract.options import Options
from deployments.ingress import options
from deployments.ingress.error_style import AS_OBJECT
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import OF_CLASSIFYING, REFERENCE, Route, Routes, aged, encoded
from deployments.ingress.protocol import Protocol
from deployments.ingress.queue import AnswerOrError
from deployments.ingress.service import Service
from deployments.observe.observer import Call

PATH = "/classify"
IMAGE = {"type": "string", "format": "binary"}
FORM = {
    "type": "object",
    "properties": {"image": {"type": "array", "items": IMAGE, "minItems": 1}},
    "required": ["image"],
}
OF_RESULTS: dict[str, Any] = {
    "items": {"oneOf": [{"$ref": REFERENCE.format(name=model)} for model in ("Classification", "ErrorAnswer")]}
}


class Results(msgspec.Struct, frozen=True):
    """The answers to a form of several images, in order."""

    results: Annotated[list[Any], Meta(extra_json_schema=OF_RESULTS)]


class Classify(Protocol):
    """This project's own protocol."""

    def routes(self, service: Service) -> Routes:
        """Return the one path."""
        ingress = service.ingress

        async def answer(request: Request, call: Call) -> Response:
            asked = options.with_headers(options.from_query(request.query_params), request.headers)
            # Before a byte of the body is read.
            async with ingress.capacity.arriving(asked, call.caller) as arrival:
                images = await bodies.images(request, ingress.capacity, arrival, service.max_image_bytes)
            # The parts of a form that are images; the others are errors already.
            sent = {place: image for place, image in enumerate(images) if isinstance(image, bytes)}
            outcomes: dict[int, AnswerOrError] = {
                place: image for place, image in enumerate(images) if isinstance(image, EnsembleError)
            }
            if sent:
                answers = await ingress.classify(
                    list(sent.values()), asked, began=arrival.began, trace=call.trace, by=call.caller, places=list(sent)
                )
                outcomes |= zip(sent, answers, strict=True)
            return _response([outcomes[place] for place in range(len(images))], call)

        summary = "Classify one image, or each image of a form"
        body = {"image/*": IMAGE, "multipart/form-data": FORM}
        models = (Classification, Results)
        return {PATH: Route("POST", answer, summary, models, OF_CLASSIFYING, query=Options, body=body, observed=True)}


def _response(outcomes: Sequence[AnswerOrError], call: Call) -> Response:
    """Encode one image's answer, or the answers to a form's images; raise the error of an image that is alone."""
    if len(outcomes) > 1:
        if failed := [outcome for outcome in outcomes if isinstance(outcome, EnsembleError)]:
            call.fail(next((error for error in failed if error.is_fault), failed[0]))
        return aged(encoded(Results([_result(outcome) for outcome in outcomes])), outcomes)
    [outcome] = outcomes
    if isinstance(outcome, EnsembleError):
        raise outcome
    return aged(encoded(outcome.classification), outcomes)


def _result(outcome: AnswerOrError) -> Any:
    return AS_OBJECT.tell(outcome) if isinstance(outcome, EnsembleError) else outcome.classification

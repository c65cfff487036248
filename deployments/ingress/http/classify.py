"""`POST /classify`: an image as the body, or several in a form; this project's own way to ask."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Classification
from deployments.contract.errors import EnsembleError
from deployments.contract.options import Options
from deployments.ingress import options
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import AS_OBJECT, OF_CLASSIFYING, REFERENCE, Route, Routes, aged, encoded
from deployments.ingress.ingress import Outcome
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


class Classify:
    """Answers `/classify`."""

    def __init__(self, service: Service) -> None:
        """Set where images go."""
        self._ingress = service.ingress

    def routes(self) -> Routes:
        """The one path."""
        return {
            PATH: Route(
                "POST",
                self.answer,
                "Classify one image, or each image of a form",
                (Classification, Results),
                OF_CLASSIFYING,
                query=Options,
                body={"image/*": IMAGE, "multipart/form-data": FORM},
                observed=True,
            )
        }

    async def answer(self, request: Request, call: Call) -> Response:
        """Classify the images of a request."""
        asked = options.with_headers(options.from_query(request.query_params), request.headers)
        # Before a byte of the body is read.
        async with self._ingress.arriving(asked, call.caller) as arrival:
            images = await bodies.images(request, self._ingress.settings, arrival)
        places = [place for place, image in enumerate(images) if isinstance(image, bytes)]
        sent = [image for image in images if isinstance(image, bytes)]
        told = (
            await self._ingress.classify(
                sent, asked, began=arrival.began, trace=call.trace, by=call.caller, places=places
            )
            if sent
            else ()
        )
        answers = iter(told)
        outcomes: list[Outcome] = [next(answers) if isinstance(image, bytes) else image for image in images]
        if len(outcomes) > 1:
            failed = [outcome for outcome in outcomes if isinstance(outcome, EnsembleError)]
            if failed:
                call.fail(next((error for error in failed if error.is_fault), failed[0]))
            return aged(encoded({"results": [_told(outcome) for outcome in outcomes]}), outcomes)
        if isinstance(outcomes[0], EnsembleError):
            raise outcomes[0]
        return aged(encoded(outcomes[0].classification), outcomes)


def _told(outcome: Outcome) -> Any:
    return AS_OBJECT.tell(outcome) if isinstance(outcome, EnsembleError) else outcome.classification

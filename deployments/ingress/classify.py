"""`POST /classify`: an image as the body, or several in a form; this project's own way to ask."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Classification
from deployments.contract.errors import EnsembleError
from deployments.ingress import headers, options
from deployments.ingress.error_style import AS_OBJECT
from deployments.ingress.http import bodies, forms
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.queue import AnswerOrError
from deployments.ingress.routes import JSON, OF_CLASSIFYING, REFERENCE, Route, Routes, aged, encoded
from deployments.observe.observer import Call

PATH, FORM_TYPE = "/classify", "multipart/form-data"
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
        summary = "Classify one image, or each image of a form"
        body, models = {"image/*": IMAGE, FORM_TYPE: FORM}, (Classification, Results)
        handler, query = partial(self._classify, service), options.every()
        return {PATH: Route("POST", handler, summary, models, OF_CLASSIFYING, query=query, body=body, observed=True)}

    async def _classify(self, service: Service, request: Request, call: Call) -> Response:
        """Answer a request: read its options and images, and classify the images together."""
        ingress, has_query = service.ingress, request.scope["query_string"]
        in_query = options.from_keywords(request.query_params, strict=False) if has_query else options.DEFAULT
        asked = headers.with_options(in_query, request.headers)
        # Before a byte of the body is read.
        async with ingress.admission.arriving(asked, call.caller) as arrival:
            limit = bodies.of_image(ingress.admission.settings, service.max_image_bytes)
            declared = bodies.media_type(request.headers)
            if declared == FORM_TYPE:
                images = await forms.images(request, ingress.admission, arrival, limit)
            elif not bodies.IMAGE_TYPES.fullmatch(declared):
                raise bodies.no_image(declared)
            else:
                # A body that came in one piece is not copied.
                images = [b"".join([each async for each in bodies.bounded(request, limit, ingress.admission, arrival)])]
        # The parts of a form that are images; the others are errors already.
        outcomes: dict[int, bytes | AnswerOrError] = dict(enumerate(images))
        sent = {place: image for place, image in outcomes.items() if isinstance(image, bytes)}
        if sent:
            answers = await ingress.classify(
                list(sent.values()), asked, began=arrival.began, trace=call.trace, by=call.caller, places=list(sent)
            )
            outcomes |= zip(sent, answers, strict=True)
        results = [each for each in outcomes.values() if not isinstance(each, bytes)]
        if len(results) > 1:
            return _of_form(results, call)
        if isinstance(results[0], EnsembleError):
            raise results[0]
        content = results[0].classification
        response = Response(msgspec.json.encode(content), media_type=JSON)
        return response if content.cache is None else aged(response, results)


def _of_form(outcomes: Sequence[AnswerOrError], call: Call) -> Response:
    """Encode the answers and errors to a form's images."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, EnsembleError)]
    results = [AS_OBJECT.tell(each) if isinstance(each, EnsembleError) else each.classification for each in outcomes]
    if failed:
        call.fail(next((error for error in failed if error.is_fault), failed[0]))
    response = encoded(Results(results))
    has_cache = not failed and results[0].cache is not None
    return aged(response, outcomes) if has_cache else response

"""A protocol: `POST /words` takes an image and answers one line of text, and so do its errors."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from deployments.contract.errors import EnsembleError
from deployments.ingress.error_style import ErrorStyle
from deployments.ingress.http import bodies
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_CLASSIFYING, Route, Routes
from deployments.observe.observer import Call


class Words(Protocol):
    """The protocol; an error of any path below `prefix` is a JSON text."""

    prefix, style = "/words", ErrorStyle(str, lambda error: f"sorry: {error.message}")

    def routes(self, service: Service) -> Routes:
        """Name the paths, and what the OpenAPI document says of them."""

        async def answer(request: Request, call: Call) -> Response:
            image, began = await bodies.document(request, service.ingress.admission, call.caller, json_bytes=0)
            [found] = await service.ingress.classify([image], began=began, trace=call.trace, by=call.caller)
            if isinstance(found, EnsembleError):
                raise found
            return PlainTextResponse(f"it is {found.classification.label}")

        return {"/words": Route("POST", answer, "Words: in a line", (), OF_CLASSIFYING, self.style, observed=True)}

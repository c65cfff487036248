"""Seldon's v1 API as a protocol of the server, over REST and gRPC; the feature `feedback` takes its true labels."""

import msgspec
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import AlreadyLabelled, UnknownLabel, UnknownRequest
from deployments.ingress import headers, options
from deployments.ingress.error_style import ErrorStyle
from deployments.ingress.http import bodies
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_ARRIVING, OF_CLASSIFYING, Calls, Route, Routes, Rpc, encoded
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Call
from ensemble_interop.seldon import seldon_pb2 as pb
from ensemble_interop.seldon.graph import Graph
from ensemble_interop.seldon.messages import (
    Feedback,
    SeldonMessage,
    decode_image,
    feedback_from_proto,
    from_proto,
    to_proto,
)

SELDON = pb.DESCRIPTOR.services_by_name["Seldon"]
PREDICT, SEND_FEEDBACK = f"{SELDON.full_name}/Predict", f"{SELDON.full_name}/SendFeedback"
PREDICTIONS_PATH, FEEDBACK_PATH = "/api/v1.0/predictions", "/api/v1.0/feedback"


class Status(msgspec.Struct, frozen=True):
    """What went wrong: the HTTP status, the message, and the error's code."""

    code: int
    info: str
    reason: str
    status: str


class Failure(msgspec.Struct, frozen=True):
    """The answer to a request that failed."""

    status: Status


AS_STATUS = ErrorStyle(
    Failure,
    lambda error: {
        "status": {"code": error.http_status, "info": error.message, "reason": error.code, "status": "FAILURE"}
    },
)


class Seldon(Protocol):
    """Takes images and true labels; the labels only where the feature `feedback` is on."""

    prefix, style = "/api/", AS_STATUS
    services = (SELDON,)
    # TensorFlow Serving's `PredictionService` has a `Predict`, too.
    behind_serve = False
    large = (PREDICT, SEND_FEEDBACK)

    def routes(self, service: Service) -> Routes:
        """Return the paths for images and for labels."""
        ingress, graph = service.ingress, Graph(service)

        async def predict(request: Request, call: Call) -> Response:
            asked = headers.with_options(options.DEFAULT, request.headers)
            body, began = await bodies.document(request, ingress.admission, call.caller, asked=asked)
            message = bodies.parsed(body, SeldonMessage, mend=decode_image)
            return encoded(await graph.predict(message, asked, call, began))

        async def feedback(request: Request, call: Call) -> Response:
            # A client sends its request and the answer along.
            body, _ = await bodies.document(request, ingress.admission, call.caller)
            return encoded(await graph.feedback(bodies.parsed(body, Feedback), call))

        return {
            PREDICTIONS_PATH: Route(
                "POST",
                predict,
                "Seldon's API: the probabilities for images",
                (SeldonMessage,),
                OF_CLASSIFYING,
                AS_STATUS,
                body={"application/json": SeldonMessage},
                observed=True,
            ),
            FEEDBACK_PATH: Route(
                "POST",
                feedback,
                "Seldon's API: send the true labels of images",
                (SeldonMessage,),
                (*OF_ARRIVING, UnknownLabel, UnknownRequest, AlreadyLabelled),
                AS_STATUS,
                body={"application/json": Feedback},
                is_on=lambda: not service.not_serving,
            ),
        }

    def calls(self, service: Service) -> Calls:
        """Return the methods for images and for labels."""
        graph = Graph(service)

        async def predict(request: pb.SeldonMessage, call: Call) -> Message:
            return to_proto(await graph.predict(from_proto(request), options.DEFAULT, call))

        async def feedback(request: pb.Feedback, call: Call) -> Message:
            return to_proto(await graph.feedback(feedback_from_proto(request), call))

        def max_fields(settings: IngressSettings) -> int:
            # A list's elements are fields, and count as the elements of JSON do.
            return settings.max_elements

        return {
            PREDICT: Rpc(predict, observed=True, fields=max_fields),
            SEND_FEEDBACK: Rpc(feedback, fields=max_fields),
        }

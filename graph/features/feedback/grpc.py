"""gRPC: `ensemble.FeedbackService`, the true labels of images that were answered. See `POST /feedback`."""

from __future__ import annotations

import msgspec
from google.protobuf.message import Message

from deployments.contract.errors import EnsembleError, InvalidParameter
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.grpc.wire import max_fields
from deployments.ingress.protocol import Protocol
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.protocol import feedback_pb2 as pb
from graph.features.feedback.labels import MAX_LABELS, TakesLabel, TrueLabel, refuse, taken

SERVICE = pb.DESCRIPTOR.services_by_name["FeedbackService"]


class FeedbackService(Protocol):
    """Takes labels in every application; without the feature it refuses them."""

    services = (SERVICE,)

    def calls(self, service: Service) -> Calls:
        """Return the one method."""
        return calls(service.handles.get("feedback", refuse))


def calls(take: TakesLabel) -> Calls:
    """Return the service's one method; `take` takes the labels."""

    async def handler(request: pb.LabelRequest, call: Call) -> Message:
        errors = await taken(take, _read, request.labels, call.caller.name)
        if len(errors) > 1:
            return pb.LabelResponse(accepted=errors.count(None), results=map(_result, errors))
        if errors[0] is not None:
            raise errors[0]
        return pb.LabelResponse(accepted=1)

    return {f"{SERVICE.full_name}/Label": Rpc(handler, fields=lambda _: max_fields(MAX_LABELS))}


def _result(error: EnsembleError | None) -> pb.LabelResponse.Result:
    result = pb.LabelResponse.Result
    return result() if error is None else result(code=error.code, message=error.message)


def _read(sent: pb.TrueLabel) -> TrueLabel:
    which = sent.WhichOneof("label")
    if which is None:
        raise InvalidParameter("a label has the class' `name` or its `index`")
    label = {"request_id": sent.request_id, "label": getattr(sent, which), "index": sent.image}
    try:
        return msgspec.convert(label, TrueLabel)
    except msgspec.ValidationError as err:
        raise InvalidParameter(f"a label has a `request_id` and the position of its `image`: {err}") from err

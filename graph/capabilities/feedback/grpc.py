"""gRPC: `ensemble.FeedbackService`, the true labels of images that were answered. See `POST /feedback`."""

from __future__ import annotations

from google.protobuf.message import Message

from deployments.contract.errors import EnsembleError, InvalidParameter
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.observe.observer import Call
from deployments.protocol import feedback_pb2 as pb
from graph.capabilities.feedback.store import LONGEST_ID, MOST_LABELS, MOST_PLACE, TakesLabel


class GrpcFeedback:
    """Answers `Label`."""

    def __init__(self, take: TakesLabel) -> None:
        """Set what takes labels."""
        self._take = take

    def calls(self) -> Calls:
        """The one method."""
        return {"Label": Rpc(self._label, pb.LabelResponse, parts=MOST_LABELS)}

    async def _label(self, request: pb.LabelRequest, call: Call) -> Message:
        if not 1 <= len(request.labels) <= MOST_LABELS:
            raise InvalidParameter(f"a request holds 1 to {MOST_LABELS} labels; this one has {len(request.labels)}")
        if len(request.labels) == 1:
            await self._taken(request.labels[0], call.caller.name)
            return pb.LabelResponse(accepted=1)
        results = [await self._told(label, call.caller.name) for label in request.labels]
        return pb.LabelResponse(accepted=sum(not result.code for result in results), results=results)

    async def _told(self, label: pb.TrueLabel, key: str) -> pb.LabelResponse.Result:
        try:
            await self._taken(label, key)
        except EnsembleError as err:
            return pb.LabelResponse.Result(code=err.code, message=err.message)
        return pb.LabelResponse.Result()

    async def _taken(self, label: pb.TrueLabel, key: str) -> None:
        if not 1 <= len(label.request_id) <= LONGEST_ID:
            raise InvalidParameter(f"`request_id` has 1 to {LONGEST_ID} characters, not {len(label.request_id)}")
        if label.image > MOST_PLACE:
            raise InvalidParameter(f"`image` is at most {MOST_PLACE}, not {label.image}")
        which = label.WhichOneof("label")
        if which is None:
            raise InvalidParameter("a label has the class' `name` or its `index`")
        await self._take(label.request_id, label.name if which == "name" else label.index, label.image, key)

"""A client of `inference.GRPCInferenceService`, and the function of the service by the name that protoc generates.

Configurations of earlier versions have that name; the function is that of `services`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass

from deployments.protocol.services import OPEN_INFERENCE, add_open_inference

add_GRPCInferenceServiceServicer_to_server = add_open_inference  # noqa: N816


class GRPCInferenceServiceStub:
    """A method of a client for each of the service's, over a channel of grpc or of grpc.aio."""

    def __init__(self, channel: Any) -> None:
        """Set the channel."""
        for method in OPEN_INFERENCE.methods:
            asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            path = f"/{OPEN_INFERENCE.full_name}/{method.name}"
            call = channel.unary_unary(path, asked.SerializeToString, answered.FromString)
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A method of the service."""

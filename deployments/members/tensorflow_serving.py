"""Members on a server that speaks TensorFlow Serving's API: TensorFlow Serving, OpenVINO Model Server before 2026.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from deployments.remote.kind import RemoteKind
from deployments.remote.settings import Text

if TYPE_CHECKING:
    from deployments.remote.credentials import Token
    from deployments.remote.server import Server


class TensorFlowServing(RemoteKind):
    """A model on another server, by REST or gRPC as its URL says."""

    kind: Literal["tensorflow_serving"] = Field(description="TensorFlow Serving's API")
    signature_name: Text = Field("serving_default", description="which signature of the model is asked")
    datatype: Literal["UINT8", "FP32"] = Field(
        "UINT8", description="of the input, where a server tells no metadata; KServe's own by REST tells none"
    )

    def connect(self, where: str, token: Token, scores: int) -> Server:
        """See `RemoteKind.connect`."""
        # Imported where it runs: each way brings its own client.
        if self.is_grpc:
            from deployments.remote.tensorflow_grpc import TensorFlowGrpc

            return TensorFlowGrpc(self, where, token, scores, self.signature_name)
        from deployments.remote.tensorflow_http import TensorFlowHttp

        return TensorFlowHttp(self, where, token, scores, self.signature_name, self.datatype)

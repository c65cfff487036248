"""Members on a server that speaks TensorFlow Serving's API: TensorFlow Serving, OpenVINO Model Server before 2026.3."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ensemble_remote.client import Client
from ensemble_remote.member import RemoteKind
from ensemble_remote.tensors import TensorName


class TensorFlowServing(RemoteKind):
    """A model on another server, called by REST or gRPC according to its URL."""

    kind: Literal["tensorflow_serving"] = Field(description="TensorFlow Serving's API")
    signature_name: TensorName = Field("serving_default", description="the signature of the model that is called")
    datatype: Literal["UINT8", "FP32"] = Field(
        "UINT8", description="type of the input, for a server without metadata, such as KServe's own over REST"
    )

    def connect(self, ip: str, max_scores: int) -> Client:
        """See `RemoteConfig.connect`."""
        # Imported where it runs: each has a client library of its own.
        if self.is_grpc:
            from ensemble_tensorflow_serving.client_grpc import TensorFlowGrpc

            return TensorFlowGrpc(self, ip, max_scores, self.signature_name)
        from ensemble_tensorflow_serving.client_http import TensorFlowHttp

        return TensorFlowHttp(self, ip, max_scores, self.signature_name, self.datatype)

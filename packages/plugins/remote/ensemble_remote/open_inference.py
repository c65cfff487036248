"""Members on a server that speaks the Open Inference Protocol (KServe v2): Triton, MLServer, KServe or this one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ensemble_remote.client import Client
from ensemble_remote.member import RemoteKind


class OpenInference(RemoteKind):
    """A model on another server, called by REST or gRPC according to its URL."""

    kind: Literal["open_inference"] = Field(description="the Open Inference Protocol")

    def connect(self, ip: str, max_scores: int) -> Client:
        """See `RemoteConfig.connect`."""
        # Imported where it runs: each has a client library of its own.
        if self.is_grpc:
            from ensemble_remote.open_inference_grpc import OpenInferenceGrpc

            return OpenInferenceGrpc(self, ip, max_scores)
        from ensemble_remote.open_inference_http import OpenInferenceHttp

        return OpenInferenceHttp(self, ip, max_scores)

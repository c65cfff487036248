"""Members on a server that speaks the Open Inference Protocol (KServe v2): Triton, MLServer, KServe, ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from deployments.remote.kind import RemoteKind

if TYPE_CHECKING:
    from deployments.remote.credentials import Token
    from deployments.remote.server import Server


class OpenInference(RemoteKind):
    """A model on another server, by REST or gRPC as its URL says."""

    kind: Literal["open_inference"] = Field(description="the Open Inference Protocol")

    def connect(self, where: str, token: Token, scores: int) -> Server:
        """See `RemoteKind.connect`."""
        # Imported where it runs: each way brings its own client.
        if self.is_grpc:
            from deployments.remote.open_inference_grpc import OpenInferenceGrpc

            return OpenInferenceGrpc(self, where, token, scores)
        from deployments.remote.open_inference_http import OpenInferenceHttp

        return OpenInferenceHttp(self, where, token, scores)

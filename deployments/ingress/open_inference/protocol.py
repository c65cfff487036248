"""The Open Inference Protocol as a protocol of the server."""

from collections.abc import Mapping
from typing import ClassVar

from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.open_inference.grpc import SERVICE, OpenInferenceGrpc
from deployments.ingress.open_inference.http import OpenInferenceHttp
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import Calls, Routes


class OpenInference(Protocol):
    """Serves the ensemble, and each member, as a model with tensors."""

    prefix, style = "/v2", AS_TEXT
    services = (SERVICE,)
    large = (f"{SERVICE.full_name}/ModelInfer",)
    slow = (f"{SERVICE.full_name}/RepositoryModel",)
    streams: ClassVar[Mapping[str, str]] = {f"{SERVICE.full_name}/ModelStreamInfer": "ModelInfer"}

    def routes(self, service: Service) -> Routes:
        """Return its paths below `/v2`."""
        return OpenInferenceHttp(service).routes()

    def calls(self, service: Service) -> Calls:
        """Return its methods."""
        return OpenInferenceGrpc(service).calls()

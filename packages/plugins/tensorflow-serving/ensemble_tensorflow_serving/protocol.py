"""TensorFlow Serving's API as a protocol of the server."""

from __future__ import annotations

from deployments.contract.errors import NotFound
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import Calls, Routes
from ensemble_tensorflow_serving.grpc import MODEL, PREDICTION, TensorFlowServingGrpc
from ensemble_tensorflow_serving.http import AS_MESSAGE, TensorFlowServingHttp, unknown


class TensorFlowServing(Protocol):
    """Serves the ensemble as a servable with one signature."""

    prefix, style = "/v1/", AS_MESSAGE
    services = (PREDICTION, MODEL)
    large = (f"{PREDICTION.full_name}/Predict", f"{PREDICTION.full_name}/Classify")

    def routes(self, service: Service) -> Routes:
        """Return its paths below `/v1/models`."""
        return TensorFlowServingHttp(service).routes()

    def calls(self, service: Service) -> Calls:
        """Return its methods."""
        return TensorFlowServingGrpc(service).calls()

    def not_found(self, path: str) -> NotFound:
        """Return the error of an unknown path, in that API's words."""
        return unknown(path) or super().not_found(path)

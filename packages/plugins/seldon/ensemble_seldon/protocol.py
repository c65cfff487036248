"""Seldon's v1 API as a protocol of the server."""

from __future__ import annotations

from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import Calls, Routes
from ensemble_rollout.feedback.labels import refuse
from ensemble_seldon import feedback, grpc, http


class Seldon(Protocol):
    """Takes images and true labels; the labels only where the feature `feedback` is on."""

    prefix, style = http.PREFIX, http.AS_STATUS
    services = (grpc.SELDON,)
    # TensorFlow Serving's `PredictionService` has a `Predict`, too.
    behind_serve = False
    large = (f"{grpc.SELDON.full_name}/Predict", f"{grpc.SELDON.full_name}/SendFeedback")

    def routes(self, service: Service) -> Routes:
        """Return the paths for images and for labels."""
        take, is_on = service.handles.get("feedback", refuse), not service.not_serving
        return http.routes(service) | feedback.routes(service.ingress, take, len(service.labels), is_on)

    def calls(self, service: Service) -> Calls:
        """Return the methods for images and for labels."""
        take = service.handles.get("feedback", refuse)
        return grpc.calls(service) | feedback.calls(take, len(service.labels))

"""The functions that `grpc_servicer_functions` may list, and the services that each stands for, by their full names."""

from __future__ import annotations

_MODULE = "deployments.protocol.services"
FEEDBACK, SELDON = f"{_MODULE}.add_feedback", f"{_MODULE}.add_seldon"
SERVED_BY = {
    f"{_MODULE}.add_open_inference": ("inference.GRPCInferenceService",),
    f"{_MODULE}.add_tensorflow_serving": ("tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"),
    f"{_MODULE}.add_health": ("grpc.health.v1.Health",),
    FEEDBACK: ("ensemble.FeedbackService",),
    SELDON: ("seldon.protos.Seldon",),
    # As files of 0.1.0 name it.
    "deployments.protocol.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server": (
        "inference.GRPCInferenceService",
    ),
}

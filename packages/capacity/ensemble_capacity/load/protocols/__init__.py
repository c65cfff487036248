"""How images become a request: one file for each protocol that a server may speak."""

from __future__ import annotations

from urllib.parse import SplitResult

from ensemble_capacity.load.protocols.classify import Classify
from ensemble_capacity.load.protocols.open_inference import OpenInference
from ensemble_capacity.load.protocols.protocol import Protocol
from ensemble_capacity.load.protocols.tensorflow_serving import TensorFlowServing

NAMES = (Classify.name, OpenInference.name, TensorFlowServing.name)


def chosen(url: SplitResult, name: str | None, model: str, shapes: dict[str, tuple[int, ...]]) -> Protocol:
    """The protocol of a name, or else of a URL: its path shows it, and gRPC has the Open Inference Protocol.

    `shapes` are of input tensors whose extents the server leaves open, without the batch, by name.

    Raises:
        ValueError: the protocol has no gRPC.
    """
    is_grpc = url.scheme.startswith("grpc")
    if name is None:
        by_path = {"v2": OpenInference.name, "v1": TensorFlowServing.name}
        name = OpenInference.name if is_grpc else by_path.get(url.path.strip("/").split("/")[0], Classify.name)
    if name == OpenInference.name:
        return OpenInference(model, is_grpc, shapes)
    if name == TensorFlowServing.name:
        return TensorFlowServing(model, is_grpc, shapes)
    if is_grpc:
        raise ValueError("/classify is HTTP; over gRPC there are open-inference and tensorflow-serving")
    return Classify(url.path.rstrip("/") or "/classify")

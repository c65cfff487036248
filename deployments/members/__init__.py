"""The kinds of members: one file each, and one line in their union."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from deployments.members.onnxruntime import OnnxRuntime
from deployments.members.open_inference import OpenInference
from deployments.members.openvino import OpenVino
from deployments.members.tensorflow_serving import TensorFlowServing

KINDS = frozenset({"openvino", "onnxruntime", "open_inference", "tensorflow_serving"})


def _kind(given: Any) -> Any:
    return given.get("kind", "openvino") if isinstance(given, dict) else getattr(given, "kind", None)


# A union and not a registry: one that is filled in the driver would be empty in a replica.
Member = Annotated[
    Annotated[OpenVino, Tag("openvino")]
    | Annotated[OnnxRuntime, Tag("onnxruntime")]
    | Annotated[OpenInference, Tag("open_inference")]
    | Annotated[TensorFlowServing, Tag("tensorflow_serving")],
    Discriminator(_kind),
]

"""The ensemble as a model: encoded images in, labels, indices and probabilities out."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.contract.errors import InvalidParameter
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.metadata import VERSION, ModelMetadata, TensorMetadata
from deployments.ingress.open_inference.model import Model
from deployments.ingress.open_inference.tensors import Tensor

MODEL = "ensemble"
INPUT = "image"


class Ensemble(Model):
    """All members together, with the transformer before them."""

    def __init__(self, ingress: Ingress, labels: Sequence[str]) -> None:
        """Set where images go, and the classes' names, in order of index."""
        outputs = [("label", "BYTES", [-1]), ("index", "INT64", [-1]), ("probabilities", "FP32", [-1, len(labels)])]
        metadata = ModelMetadata(
            MODEL,
            [VERSION],
            "openvino_ensemble",
            [TensorMetadata(INPUT, "BYTES", [-1])],
            [TensorMetadata(*output) for output in outputs],
        )
        # The images of a request are its only dimension, so there is none of a batch before others.
        super().__init__(ingress, metadata, labels, max_batch_size=0, versions={})

    def images(self, tensor: Tensor) -> Sequence[bytes]:
        """Return the elements of a tensor of shape [-1] or [-1, 1]; see `Model.images`."""
        images: Sequence[bytes] = tensor.data
        self._ingress.capacity.check_count(len(images))
        if tensor.shape not in ([len(images)], [len(images), 1]):
            raise InvalidParameter(
                f"the input {INPUT!r} has shape {tensor.shape} but {len(images)} elements; send [{len(images)}]"
            )
        return images

"""A member as a model of its own: pixels in, probabilities out."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from deployments.contract.errors import InvalidParameter
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.metadata import ModelMetadata, TensorMetadata
from deployments.ingress.open_inference.model import Model
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.single_member import MemberModelInfo

INPUT, OUTPUT = "pixels", "probabilities"


class Member(Model):
    """One member without the transformer before it: uint8 [N,H,W,3], blue, green and red."""

    def __init__(
        self,
        name: str,
        ingress: Ingress,
        offer: MemberModelInfo,
        labels: Sequence[str],
        versions: MutableMapping[str, str],
    ) -> None:
        """Set its name, where its pixels go, what it is, the classes' names, and what is known of members' versions."""
        inputs, outputs = (
            [TensorMetadata(INPUT, "UINT8", [-1, *offer.size, 3])],
            [TensorMetadata(OUTPUT, "FP32", [-1, len(labels)])],
        )
        metadata = ModelMetadata(name, [offer.version], offer.kind, inputs, outputs)
        super().__init__(ingress, metadata, labels, ingress.settings.max_parts, versions)

    def images(self, tensor: Tensor) -> Sequence[bytes]:
        """Return the rows of a tensor of pixels; see `Model.images`."""
        wanted = self.metadata.inputs[0].shape
        if len(tensor.shape) != len(wanted) or tensor.shape[1:] != wanted[1:]:
            raise InvalidParameter(f"the input {INPUT!r} has shape {tensor.shape}; send {wanted}")
        # One row more than are taken is enough to be refused.
        return [row.tobytes() for row in tensor.data[: self._ingress.settings.max_parts + 1]]

"""A member as a model of its own: pixels in, probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import InvalidParameter
from deployments.contract.options import Options
from deployments.ingress.member import MemberIngress, Offer
from deployments.ingress.open_inference.ensemble import response_parameters, succeeded
from deployments.ingress.open_inference.metadata import ModelMetadata, TensorMetadata
from deployments.ingress.open_inference.model import Inferred, Model
from deployments.ingress.open_inference.tensors import Tensor
from deployments.observe.tracing import Trace

INPUT, OUTPUT = "pixels", "probabilities"


class Member(Model):
    """One member without the transformer before it: uint8 [N,H,W,3], blue, green and red."""

    def __init__(
        self, name: str, ingress: MemberIngress, offer: Offer, labels: Sequence[str], versions: MutableMapping[str, str]
    ) -> None:
        """Set its name, where its pixels go, what it is, the classes' names, and what is known of members' versions."""
        self._ingress = ingress
        self._versions = versions
        self.labels = labels
        self.statistics = ingress.statistics
        self.max_batch_size = ingress.settings.max_parts
        self._metadata = ModelMetadata(
            name,
            [offer.version],
            offer.kind,
            [TensorMetadata(INPUT, "UINT8", [-1, *offer.size, 3])],
            [TensorMetadata(OUTPUT, "FP32", [-1, len(labels)])],
        )

    @property
    def metadata(self) -> ModelMetadata:
        """See `Model.metadata`; its version is that of the last answer, or the one loaded since."""
        known = self._versions.get(self._metadata.name, self._metadata.versions[0])
        if [known] != self._metadata.versions:
            self._metadata = replace(self._metadata, versions=[known])
        return self._metadata

    async def infer(
        self,
        tensor: Tensor,
        names: Sequence[str],
        asked: Options,
        parameters: Mapping[str, Any],
        *,
        began: float | None = None,
        trace: Trace | None = None,
        by: Caller = ANYONE,
    ) -> Inferred:
        """The probabilities of each image; see `Model.infer`."""
        wanted = self.metadata.inputs[0].shape
        if len(tensor.shape) != len(wanted) or tensor.shape[1:] != wanted[1:]:
            raise InvalidParameter(f"the input {INPUT!r} has shape {tensor.shape}; send {wanted}")
        rows = [row.tobytes() for row in tensor.data[: self._ingress.settings.max_parts + 1]]
        answers = succeeded(await self._ingress.classify(rows, asked, began=began, trace=trace, by=by))
        if (answered := answers[0].classification.model_versions.get(self._metadata.name)) is not None:
            self._versions[self._metadata.name] = str(answered)
        probabilities = np.stack([answer.probabilities for answer in answers])
        outputs = [Tensor(name, "FP32", list(probabilities.shape), probabilities) for name in names]
        return Inferred(outputs, response_parameters(answers, parameters), answers)

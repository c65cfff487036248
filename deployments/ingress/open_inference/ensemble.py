"""The ensemble as a model: encoded images in, labels, indices and probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from deployments.contract.answer import Answer
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError, InvalidParameter
from deployments.contract.options import Options
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.metadata import VERSION, ModelMetadata, TensorMetadata
from deployments.ingress.open_inference.model import Inferred, Model
from deployments.ingress.open_inference.tensors import Tensor
from deployments.observe.tracing import Trace

MODEL = "ensemble"
INPUT = "image"
# Options whose answer no tensor has.
TOLD_IN_WORDS = frozenset({"top_k", "members", "timings"})


class Ensemble(Model):
    """All members together, with the transformer before them."""

    # The shape is as it is told: a request's images are no dimension beside another.
    max_batch_size = 0

    def __init__(self, ingress: Ingress, class_count: int, labels: Sequence[str]) -> None:
        """Set where images go, the number of classes, and their names."""
        self._ingress = ingress
        self.labels = labels
        self.statistics = ingress.statistics
        outputs = [("label", "BYTES", [-1]), ("index", "INT64", [-1]), ("probabilities", "FP32", [-1, class_count])]
        self._metadata = ModelMetadata(
            MODEL,
            [VERSION],
            "openvino_ensemble",
            [TensorMetadata(INPUT, "BYTES", [-1])],
            [TensorMetadata(*output) for output in outputs],
        )

    @property
    def metadata(self) -> ModelMetadata:
        """See `Model.metadata`."""
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
        """Classify encoded images; see `Model.infer`."""
        images: Sequence[bytes] = tensor.data
        self._ingress.check_count(len(images))
        _check_shape(tensor.shape, len(images))
        answers = succeeded(await self._ingress.classify(images, asked, began=began, trace=trace, by=by))
        told = response_parameters(answers, parameters)
        return Inferred([_tensor(name, answers) for name in names], told, answers)


def _check_shape(shape: Sequence[Any], count: int) -> None:
    """Raise InvalidParameter unless the input's shape, [-1] or [-1, 1], matches the number of its elements."""
    fits = len(shape) in {1, 2} and shape[0] == count and (len(shape) == 1 or shape[1] == 1)
    if not fits or count == 0:
        raise InvalidParameter(f"the input {INPUT!r} has shape {list(shape)} but {count} elements; send [{count}]")


def succeeded(outcomes: Sequence[Answer | EnsembleError]) -> list[Answer]:
    """The answers to a request's images.

    Raises:
        EnsembleError: the first image's that failed, since the protocol has no error for a single element.
    """
    answers: list[Answer] = []
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, EnsembleError):
            where = f"image {position}: " if len(outcomes) > 1 else ""
            raise type(outcome)(f"{where}{outcome.message}", retry_after_s=outcome.retry_after_s)
        answers.append(outcome)
    return answers


def _tensor(name: str, answers: Sequence[Answer]) -> Tensor:
    if name == "label":
        return Tensor(name, "BYTES", [len(answers)], [answer.classification.label.encode() for answer in answers])
    if name == "index":
        index = np.array([answer.classification.index for answer in answers], np.int64)
        return Tensor(name, "INT64", list(index.shape), index)
    probabilities = np.stack([answer.probabilities for answer in answers])
    return Tensor(name, "FP32", list(probabilities.shape), probabilities)


def response_parameters(answers: Sequence[Answer], asked: Mapping[str, Any]) -> dict[str, str]:
    """What the protocol has no tensor for.

    `trace_id`; and as JSON, an element for each image, `missing`, where members did not answer, `asked`, of a cascade,
    `cache`, of a cache, and `classifications`, the answers, if `top_k`, `members` or `timings` was asked.
    """
    parameters = {"trace_id": answers[0].classification.trace_id}
    missing = [answer.classification.missing or {} for answer in answers]
    if any(missing):
        parameters["missing"] = msgspec.json.encode(missing).decode()
    if answers[0].classification.asked is not None:
        parameters["asked"] = msgspec.json.encode([answer.classification.asked for answer in answers]).decode()
    if answers[0].classification.cache is not None:
        parameters["cache"] = msgspec.json.encode([answer.classification.cache for answer in answers]).decode()
    if not asked.keys().isdisjoint(TOLD_IN_WORDS):
        parameters["classifications"] = msgspec.json.encode([answer.classification for answer in answers]).decode()
    return parameters

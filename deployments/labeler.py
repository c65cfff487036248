"""The labeler: probabilities of the ensemble in, answers out."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from pydantic import Field

from deployments.contract.answer import PROBABILITY_DIGITS, Answer, Classification, ClassProbability, MemberAnswer
from deployments.contract.batch import Batch, Work
from deployments.contract.item import TRACE_ID, Item, MemberPrediction
from deployments.contract.options import MAX_CLASSES
from deployments.contract.payload import Probabilities
from deployments.contract.settings import Placement, Schema

OPERATION = "label"
# Of an answer's fields, by name.
TYPES = {each.name: each.type for each in msgspec.structs.fields(Classification)}


class LabelerSettings(Schema):
    """The classes that an answer lists."""

    top_k: int = Field(
        1, ge=1, le=MAX_CLASSES, description="classes that an answer lists; a request may set another number"
    )


class LabelerConfig(LabelerSettings):
    """The labeler."""

    placement: Placement = "separate"


class Labeler:
    """Names the most probable classes."""

    def __init__(self, settings: LabelerSettings, labels: Sequence[str]) -> None:
        """Set how many classes an answer lists, and the class names in order of index."""
        self._labels = labels
        self.settings = settings

    async def __call__(self, batch: Batch[Probabilities]) -> Batch[Sequence[Answer]]:
        """Label probabilities, float32 [N,C]: one answer per row."""
        work = Work(OPERATION, batch)
        live = [item for item in work.batch.items if item.error is None]
        return work.done([self.answer(item, row) for item, row in zip(live, work.payload, strict=True)])

    def answer(self, item: Item, row: Probabilities) -> Answer:
        """Label the probabilities of one image, float32 [C]."""
        options = item.options
        k = options.top_k or self.settings.top_k
        best = [int(row.argmax())] if k == 1 else np.argsort(-row, kind="stable")[:k].tolist()
        top = tuple(ClassProbability(self._labels[index], index, _rounded(float(row[index]))) for index in best)
        classification = Classification(
            label=top[0].label,
            index=top[0].index,
            probability=top[0].probability,
            top=top,
            model_versions=item.versions,
            missing=item.missing or None,
            warning=item.warning or None,
            trace_id=item.trace_parent[TRACE_ID],
            members={name: self._member(each, top) for name, each in item.predictions.items()}
            if options.members
            else None,
            **(_fields(item.extras) if item.extras else {}),
        )
        return Answer(classification, row)

    def _member(self, prediction: MemberPrediction, top: Sequence[ClassProbability]) -> MemberAnswer:
        row = np.frombuffer(prediction.row, np.float32)
        probabilities = [_rounded(float(row[each.index])) for each in top] if len(row) else []
        return MemberAnswer(
            label=self._labels[prediction.index],
            index=prediction.index,
            probability=_rounded(prediction.probability),
            probabilities=tuple(probabilities),
        )


def _fields(extras: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what features add to an answer as fields of the answer; `extras` has fields that it does not know."""
    fields, unknown = dict[str, Any](), dict[str, Any]()
    for name, value in extras.items():
        if name not in TYPES:
            unknown[name] = value
        else:
            # It is plain data if it was stored, or came from another process.
            fields[name] = msgspec.convert(value, TYPES[name]) if isinstance(value, dict) else value
    return fields | {"extras": unknown} if unknown else fields


def _rounded(probability: float) -> float:
    # A mean of float32 may come out a little above 1.
    return min(1.0, round(probability, PROBABILITY_DIGITS))

"""The labeler: the ensemble's probabilities in, classifications out."""

from __future__ import annotations

import time

import numpy as np

from graph.batch import Batch, Classification, ClassProbability, Probabilities, Request
from graph.config import LabelerSettings
from graph.tracing import trace_id


class Labeler:
    """Names the most probable classes."""

    def __init__(self, settings: LabelerSettings, labels: tuple[str, ...]) -> None:
        """Set how many classes an answer lists by default, and the class names in order of index."""
        self._labels = labels
        self.settings = settings

    async def __call__(self, batch: Batch[Probabilities]) -> Batch[list[Classification]]:
        """Probabilities, float32 [N,C], to one classification a row."""
        start_ns = time.time_ns()
        rows = zip(batch.live, batch.payload, strict=True)
        answers = [self._classify(batch.requests[position], row, batch.versions) for position, row in rows]
        return batch.advance("label", start_ns, answers)

    def _classify(self, request: Request, row: Probabilities, versions: dict[str, int]) -> Classification:
        top = self._top(row, request.top_k or self.settings.top_k)
        votes = {name: self._name(index, probability) for name, (index, probability) in request.votes.items()}
        return Classification(
            label=top[0].label,
            index=top[0].index,
            probability=top[0].probability,
            top=top,
            members=votes if request.members else None,
            model_versions=versions,
            trace_id=trace_id(request.trace_parent),
            probabilities=row if request.probabilities else None,
        )

    def _top(self, row: Probabilities, k: int) -> tuple[ClassProbability, ...]:
        if k == 1:
            best = int(row.argmax())
            return (self._name(best, float(row[best])),)
        order = np.argsort(-row, kind="stable")[:k]
        return tuple(self._name(int(index), float(row[index])) for index in order)

    def _name(self, index: int, probability: float) -> ClassProbability:
        return ClassProbability(self._labels[index], index, probability)

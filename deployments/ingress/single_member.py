"""A member asked by itself: pixels in, its own answer out, within the limits of the ensemble's images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deployments.contract.answer import PROBABILITY_DIGITS, Answer, Classification, ClassProbability
from deployments.contract.batch import Batch
from deployments.contract.item import TRACE_ID, Item
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Size


class MemberModelInfo(NamedTuple):
    """A member as a model of its own: height and width of its pixels, its version, and what runs it."""

    size: Size
    version: str
    kind: str


class SingleMemberGraph:
    """A member behind its pixels' bytes, uint8 [H,W,3] BGR an image; it says of each what the labeler would say."""

    def __init__(self, member: Node[Pixels, Probabilities], size: Size, labels: Sequence[str]) -> None:
        """Set the member, height and width of its pixels, and the class names in order of index."""
        self._member = member
        self._size = size
        self._labels = labels

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Give each image's pixels to the member, and return its answers."""
        # A bytearray, because OpenVINO wants memory that may be written to.
        pixels: Pixels = np.frombuffer(bytearray().join(batch.payload), np.uint8).reshape(-1, *self._size, 3)
        answered = await self._member(Batch(pixels, batch.items))
        live = [item for item in answered.items if item.error is None]
        rows = zip(live, answered.payload, strict=True)
        return Batch([self._answer(item, row) for item, row in rows], answered.items)

    def _answer(self, item: Item, row: Probabilities) -> Answer:
        index = int(row.argmax())
        best = ClassProbability(self._labels[index], index, min(1.0, round(float(row[index]), PROBABILITY_DIGITS)))
        classification = Classification(
            label=best.label,
            index=best.index,
            probability=best.probability,
            top=(best,),
            model_versions=item.versions,
            trace_id=item.trace_parent[TRACE_ID],
        )
        return Answer(classification, row)

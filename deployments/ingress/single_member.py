"""A member asked by itself: pixels in, its own answer out, within the limits of the ensemble's images."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Size
from deployments.labeler import Labeler, LabelerSettings


class MemberModelInfo(NamedTuple):
    """A member as a model of its own: height and width of its pixels, its version, and what runs it."""

    size: Size
    version: str
    kind: str


class SingleMemberGraph:
    """A member behind its pixels' bytes, uint8 [H,W,3] BGR an image; the labeler names the most probable classes."""

    def __init__(self, member: Node[Pixels, Probabilities], size: Size, labels: Sequence[str]) -> None:
        """Set the member, height and width of its pixels, and the class names in order of index."""
        self._member, self._size = member, size
        self._labeler = Labeler(LabelerSettings(), labels)

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Give each image's pixels to the member, and return its answers."""
        # A bytearray, because OpenVINO wants memory that may be written to.
        pixels: Pixels = np.frombuffer(bytearray().join(batch.payload), np.uint8).reshape(-1, *self._size, 3)
        answered = await self._member(Batch(pixels, batch.items))
        live = [item for item in answered.items if item.error is None]
        rows = zip(live, answered.payload, strict=True)
        return Batch([self._labeler.answer(item, row) for item, row in rows], answered.items)

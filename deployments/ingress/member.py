"""A member asked by itself: pixels in, its own answer out, within the limits of the ensemble's images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deployments.contract.answer import TOLD_DIGITS, Answer, Classification, ClassProbability
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.declared import Declared
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.options import Options
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Size
from deployments.ingress.ingress import Ingress, Outcome
from deployments.ingress.options import DEFAULT
from deployments.observe.tracing import Passage, Trace

PIXELS = Declared(is_plain=True)


class Offer(NamedTuple):
    """A member as a model of its own.

    Attributes:
        size: height and width of its pixels.
        version: of its model.
        kind: what runs it.
    """

    size: Size
    version: str
    kind: str


class PixelRows:
    """A member behind its pixels' bytes, uint8 [H,W,3] BGR an image; it says of each what the labeler would say."""

    def __init__(self, member: Node[Pixels, Probabilities], size: Size, labels: Sequence[str]) -> None:
        """Set the member, height and width of its pixels, and the class names in order of index."""
        self._member = member
        self._size = size
        self._labels = labels

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Each image's pixels to the member's answer."""
        # A bytearray, because OpenVINO wants memory that may be written to.
        pixels: Pixels = np.frombuffer(bytearray().join(batch.payload), np.uint8).reshape(-1, *self._size, 3)
        answered = await self._member(Batch(pixels, batch.items))
        live = [item for item in answered.items if item.error is None]
        rows = zip(live, answered.payload, strict=True)
        return Batch([self._answer(item, row) for item, row in rows], answered.items)

    def _answer(self, item: Item, row: Probabilities) -> Answer:
        index = int(row.argmax())
        best = ClassProbability(self._labels[index], index, min(1.0, round(float(row[index]), TOLD_DIGITS)))
        classification = Classification(
            label=best.label,
            index=best.index,
            probability=best.probability,
            top=(best,),
            model_versions=item.versions,
            trace_id=item.trace_id,
        )
        return Answer(classification, row)


class MemberIngress(Ingress):
    """Takes pixels for one member: admitted, batched and given up as the ensemble's images are, in the same room."""

    def __init__(self, ensemble: Ingress, member: PixelRows, class_count: int) -> None:
        """Set whose room and settings it has, and the member."""
        super().__init__(member, ensemble.settings, class_count, ensemble.observer, admission=ensemble._admission)
        self._ensemble = ensemble

    async def classify(
        self,
        images: Sequence[bytes],
        options: Options = DEFAULT,
        *,
        began: float | None = None,
        trace: Trace | None = None,
        by: Caller = ANYONE,
        places: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """The member's answer to each image's pixels; see `Ingress.classify`."""
        # `user_config` may have changed them.
        self.settings = self._ensemble.settings
        return await super().classify(images, options, began=began, trace=trace, by=by, places=places)

    def _declared(self, image: bytes) -> Declared:
        """Pixels have no header, whatever they begin with, and nothing of them is decoded."""
        return PIXELS

    def _observe(self, passages: Sequence[Passage], start_ns: int, end_ns: int, batch: Batch[Sequence[Answer]]) -> None:
        self.statistics.batch(passages, start_ns, end_ns, batch)
        self.observer.batch(passages, start_ns, end_ns, batch, of_ensemble=False)

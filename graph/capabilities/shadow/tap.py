"""Keeps the pixels of images that shadows get copies of, on their way to the members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.payload import PixelSets


class PixelTap:
    """A node before the members that returns every batch as it is, and keeps the pixels that are wanted of it."""

    def __init__(self, pixels: Sequence[str]) -> None:
        self._pixels = pixels
        self._numbers = count(1)
        # By the numbers of the wanted images; None for one that has not passed yet.
        self._kept: dict[int, Batch[PixelSets] | None] = {}

    def want(self) -> int:
        """The number to give to an image, whose pixels are kept until they are taken."""
        number = next(self._numbers)
        self._kept[number] = None
        return number

    def take(self, number: int) -> Batch[PixelSets] | None:
        """The pixels of an image, which are no longer kept; None if it has not passed."""
        return self._kept.pop(number, None)

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[PixelSets]:
        """The batch as it is."""
        if self._kept:
            for position in batch.live:
                if (number := batch.items[position].image_id) in self._kept:
                    part = Batch({key: batch.payload[key] for key in self._pixels}, batch.items).split([position])
                    trace_parent = part.items[0].trace_parent
                    self._kept[number] = Batch(part.payload, (Item(image_id=number, trace_parent=trace_parent),))
        return batch

"""Keeps the pixels of images that shadows get copies of, on their way to the members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.payload import PixelSets


class PixelTap:
    """Stands before the members: passes every batch on, and keeps what is wanted of it."""

    def __init__(self, pixels: Sequence[str]) -> None:
        """Set the keys of the pixels that shadows take."""
        self._pixels = pixels
        self._numbers = count(1)
        # By the number of an image that is wanted, as soon as it has come by.
        self._kept: dict[int, Batch[PixelSets] | None] = {}

    def want(self) -> int:
        """The number to give to an image, whose pixels are kept from then on until they are taken."""
        number = next(self._numbers)
        self._kept[number] = None
        return number

    def take(self, number: int) -> Batch[PixelSets] | None:
        """The pixels of an image, no longer kept here; None if it has not come by."""
        return self._kept.pop(number, None)

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[PixelSets]:
        """The batch as it came."""
        if self._kept:
            for position in batch.live:
                if (number := batch.items[position].number) in self._kept:
                    part = Batch({key: batch.payload[key] for key in self._pixels}, batch.items).split([position])
                    trace_parent = part.items[0].trace_parent
                    self._kept[number] = Batch(part.payload, (Item(number=number, trace_parent=trace_parent),))
        return batch

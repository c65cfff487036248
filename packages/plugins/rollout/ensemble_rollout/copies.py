"""Copies of images that are asked about again once they are answered, by shadows and by canaries' comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from deployments.contract.batch import Batch
from deployments.contract.item import Item, ItemNote
from deployments.contract.payload import PixelSets
from ensemble_rollout.record import Record, answered, records
from graph.pipeline.pipeline import Answered, InFlight, Interceptor

# An image's pixels, and the predictions for it.
Copy = tuple[Batch[PixelSets], Record]
NUMBERS = count(1)


class Followed(ItemNote, frozen=True):
    """The number of an image that is followed through the graph."""

    number: int

    @classmethod
    def number_of(cls, item: Item) -> int:
        """Return an image's number; 0 if it is not followed."""
        found = item.note(cls)
        return 0 if found is None else found.number


class PixelTap:
    """A node before the members that returns every batch as it is, and keeps the pixels that are wanted of it."""

    def __init__(self, pixels: Sequence[str]) -> None:
        self._pixels = pixels
        # By the numbers of the wanted images; None for one that has not passed yet.
        self._kept: dict[int, Batch[PixelSets] | None] = {}

    def want(self, item: Item) -> Item:
        """Give an image a number, by which its pixels are kept until they are taken."""
        numbered = item if item.note(Followed) else item.with_note(Followed(next(NUMBERS)))
        self._kept[Followed.number_of(numbered)] = None
        return numbered

    def take(self, number: int) -> Batch[PixelSets] | None:
        """Take the pixels of an image, which are no longer kept; None if it has not passed."""
        return self._kept.pop(number, None)

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[PixelSets]:
        """Keep the pixels of numbered images, and return the batch as it is."""
        if self._kept:
            for position in batch.live:
                item = batch.items[position]
                if (number := Followed.number_of(item)) in self._kept:
                    part = Batch({key: batch.payload[key] for key in self._pixels}, batch.items).split([position])
                    mine = Item(item.trace_parent, queued_ns=item.queued_ns, notes=item.notes, caller=item.caller)
                    self._kept[number] = Batch(part.payload, (mine,))
        return batch


class Copied(Protocol):
    """What gets copies of images."""

    def draw(self, items: Sequence[Item]) -> list[int]:
        """Draw the images that it gets a copy of, by position."""
        ...

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about images that are answered; returns at once."""
        ...


class ShadowInterceptor(Interceptor):
    """Draws the images that are copied, and sends the copies when the whole batch is answered."""

    def __init__(self, receivers: Sequence[Copied], tap: PixelTap, patience_ms: int | None) -> None:
        """Set what gets copies, the tap that keeps their pixels, and how long each may take."""
        self._receivers, self._tap, self._patience_ms = receivers, tap, patience_ms
        self._drawn: dict[InFlight, dict[Copied, list[int]]] = {}

    def on_request(self, batch: InFlight) -> None:
        """Draw images, and give each the number by which the tap finds it."""
        drawn = {each: positions for each in self._receivers if (positions := each.draw(batch.items))}
        for position in {position for positions in drawn.values() for position in positions}:
            batch.items[position] = self._tap.want(batch.items[position])
        self._drawn[batch] = drawn

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Keep the predictions, which the copies' are compared with."""
        if self._drawn[batch]:
            answered(batch, positions, part)
        return part

    def on_end(self, batch: InFlight) -> None:
        """Send the copies; an image that a cache answered has no pixels."""
        numbers = enumerate(map(Followed.number_of, batch.items))
        kept = {position: self._tap.take(number) for position, number in numbers if number}
        predicted = records(batch)
        copies: dict[int, Copy] = {
            position: (copy, predicted[position])
            for position, copy in kept.items()
            if copy is not None and position in predicted
        }
        for each, positions in self._drawn.pop(batch).items():
            if copied := [copies[position] for position in positions if position in copies]:
                each.ask(copied, self._patience_ms)

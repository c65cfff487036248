"""The predictions for an image, kept for its true label, and copies of images that are asked about again."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch, made
from deployments.contract.item import Item, ItemNote
from deployments.contract.payload import Images, PixelSets
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from ensemble_features.background import PATIENCE_MS, Background, unhurried

ENSEMBLE = "ensemble"


class Trials(ItemNote, frozen=True):
    """The trial of an image: the names of the members whose canary answers it."""

    decides = True
    members: tuple[str, ...]

    def variant(self, member: str) -> str:
        """Name the canary of a member that is tried."""
        return "canary" if member in self.members else ""

    def merge(self, copies: Sequence[Trials]) -> Trials:
        """Leave out a canary that did not answer, which has removed itself from its copy's note."""
        return Trials(tuple(name for name in self.members if all(name in copy.members for copy in copies)))

    @classmethod
    def of(cls, item: Item) -> tuple[str, ...]:
        """Return the names of the members whose canary answers an image."""
        found = item.note(cls)
        return () if found is None else found.members


@dataclass(slots=True)
class Record:
    """The classes that were predicted for an image.

    Attributes:
        index: the ensemble's.
        members: the prediction of each member that answered, by name.
        versions: the version that answered of each member that has a canary, by name.
        last: the last member that a cascade asked; empty without one.
        trials: the members whose canary has answered.
        label: the true class, once it is known.
        waiting: called once the true class is known.
        judge: counts whether a prediction was right, by its kind, its name and its version.
    """

    index: int
    members: dict[str, int]
    versions: dict[str, str] = field(default_factory=dict)
    last: str = ""
    trials: tuple[str, ...] = ()
    label: int | None = None
    waiting: list[Callable[[int], None]] = field(default_factory=list)
    judge: Callable[..., None] = lambda *_: None

    @classmethod
    def of(cls, item: Item, answer: Answer) -> Record:
        """Make a record of an answer and of its item."""
        votes = {name: vote.index for name, vote in item.predictions.items()}
        asked = answer.classification.asked
        return cls(answer.classification.index, votes, last=asked[-1] if asked else "", trials=Trials.of(item))

    def without(self, member: str) -> list[int]:
        """Return the predictions of the members but one."""
        return [index for name, index in self.members.items() if name != member]

    def others(self, replaced: str) -> dict[str, int]:
        """Return the predictions that a shadow is compared with: the ensemble's, and the replaced member's."""
        own = self.members.get(replaced)
        return {ENSEMBLE: self.index} if own is None else {ENSEMBLE: self.index, replaced: own}

    def set_label(self, index: int) -> None:
        """Note the true class."""
        self.label = index
        for watch in self.waiting:
            watch(index)

    def when_labelled(self, watch: Callable[[int], None]) -> None:
        """Call with the true class, now or once it is known."""
        if self.label is None:
            self.waiting.append(watch)
        else:
            watch(self.label)


def records(batch: InFlight) -> dict[int, Record]:
    """Return the predictions for each image of a batch that `answered` has kept, by position."""
    kept: dict[int, Record] = batch.kept.setdefault(Record, {})
    return kept


def answered(batch: InFlight, positions: Sequence[int], part: Answered) -> list[tuple[int, Item, Record]]:
    """Keep the predictions for a part's images that clients sent; each one's position, item and predictions."""
    kept, found = records(batch), []
    for row, answer in zip(part.live, part.payload, strict=True):
        position, item = positions[row], part.items[row]
        if batch.sent.items[position].queued_ns:
            if position not in kept:
                kept[position] = Record.of(item, answer)
            found.append((position, item, kept[position]))
    return found


def count_by_rightness(counts: Mapping[Any, int], *names: str) -> tuple[int, int, int, int]:
    """Return how often both of two predictions were right, only the first, only the second, and neither."""
    return (
        counts[*names, True, True],
        counts[*names, True, False],
        counts[*names, False, True],
        counts[*names, False, False],
    )


# An image's pixels, and the predictions for it.
Copy = tuple[Batch[PixelSets], Record]


def _key(item: Item) -> tuple[str, int, int]:
    """Return what no other image in flight has: its trace, when it was queued, and its position in its request."""
    return item.trace_parent, item.queued_ns, item.position


class PixelTap:
    """A node before the members that returns every batch as it is, and keeps the pixels that are wanted of it."""

    def __init__(self, pixels: Sequence[str]) -> None:
        self._pixels = pixels
        # By image; None for one that has not passed yet.
        self._kept: dict[tuple[str, int, int], Batch[PixelSets] | None] = {}

    def want(self, item: Item) -> None:
        """Keep the pixels of an image when they pass, until they are taken."""
        self._kept[_key(item)] = None

    def take(self, item: Item) -> Batch[PixelSets] | None:
        """Take the pixels of an image, which are no longer kept; None if they have not passed."""
        return self._kept.pop(_key(item), None)

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[PixelSets]:
        """Keep the pixels of the images that are wanted, and return the batch as it is."""
        if self._kept:
            for position in batch.live:
                item = batch.items[position]
                if _key(item) in self._kept:
                    part = Batch({key: batch.payload[key] for key in self._pixels}, batch.items).split([position])
                    mine = Item(item.trace_parent, queued_ns=item.queued_ns, notes=item.notes, caller=item.caller)
                    self._kept[_key(item)] = Batch(part.payload, (mine,))
        return batch


class Copied(ABC):
    """What gets copies of images: it is asked about one batch at a time, in the background."""

    def __init__(self, pixels: str, seed: int | None = None) -> None:
        """Set the key of the pixels that it takes."""
        self._pixels, self._random, self._work = pixels, random.Random(seed), Background()

    @abstractmethod
    def draw(self, items: Sequence[Item]) -> list[int]:
        """Draw the images that it gets a copy of, by position."""

    @abstractmethod
    async def compare(self, images: Batch[Images], records: Sequence[Record], patience_s: float) -> None:
        """Ask about images without deadlines, and compare the answers with the predictions for them."""

    def drop(self, images: int) -> None:  # noqa: B027
        """Count images that it is not asked about, because it is busy."""

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about images that are answered; returns at once."""
        if self._work.is_busy:
            self.drop(len(copies))
        elif copies:
            self._work.start(self._ask(copies, (patience_ms or PATIENCE_MS) / 1000))

    async def _ask(self, copies: Sequence[Copy], patience_s: float) -> None:
        sent = Batch.join([([place], part) for place, (part, _) in enumerate(copies)])
        images = await made(unhurried(Batch(sent.payload[self._pixels], sent.items)))
        await self.compare(images, [record for _, record in copies], patience_s)


class ShadowInterceptor(Interceptor):
    """Draws the images that are copied, and sends the copies when the whole batch is answered."""

    def __init__(self, receivers: Sequence[Copied], tap: PixelTap, patience_ms: int | None) -> None:
        """Set what gets copies, the tap that keeps their pixels, and how long each may take."""
        self._receivers, self._tap, self._patience_ms = receivers, tap, patience_ms
        self._drawn: dict[InFlight, dict[Copied, list[int]]] = {}

    def on_request(self, batch: InFlight) -> None:
        """Draw images, whose pixels the tap keeps."""
        drawn = {each: positions for each in self._receivers if (positions := each.draw(batch.items))}
        for position in set().union(*drawn.values()):
            self._tap.want(batch.items[position])
        self._drawn[batch] = drawn

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Keep the predictions, which the copies' are compared with."""
        if self._drawn[batch]:
            answered(batch, positions, part)
        return part

    def on_end(self, batch: InFlight) -> None:
        """Send the copies; an image that a cache answered has no pixels."""
        drawn, predicted, copies = self._drawn.pop(batch), records(batch), dict[int, Copy]()
        for position in set().union(*drawn.values()):
            pixels = self._tap.take(batch.items[position])
            if pixels is not None and position in predicted:
                copies[position] = pixels, predicted[position]
        for each, positions in drawn.items():
            if copied := [copies[position] for position in positions if position in copies]:
                each.ask(copied, self._patience_ms)

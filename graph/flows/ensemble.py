"""The members side by side, and what they say combined."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.payload import Ballots, Pixels, PixelSets, Probabilities


@dataclass(frozen=True)
class Member:
    """A member, and the key of the pixels that it takes."""

    node: Node[Pixels, Probabilities]
    pixels: str


class Ensemble:
    """Asks every member; an image that failed in any of them has failed."""

    def __init__(self, members: Mapping[str, Member], combiner: Node[Ballots, Probabilities]) -> None:
        """Set the members by name, and who combines what they say."""
        self._members, self._combiner = members, combiner

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities]:
        """Pixels by preprocessing to the ensemble's probabilities, float32 [N,C]."""
        asked = self._members.values()
        outputs = await asyncio.gather(*(m.node(Batch(batch.payload[m.pixels], batch.items)) for m in asked))
        ballots = collect(batch, dict(zip(self._members, outputs, strict=True)))
        if not ballots.live:
            return Batch(np.empty((0, 0), np.float32), ballots.items)
        return await self._combiner(ballots)


def collect(asked: Batch[PixelSets], outputs: Mapping[str, Batch[Probabilities]]) -> Batch[Ballots]:
    """What the members made of a batch as one; an image that failed in any of them has failed."""
    copies = list(outputs.values())
    items = tuple(_merged(item, [copy.items[position] for copy in copies]) for position, item in enumerate(asked.items))
    failed = {position: item.error for position, item in enumerate(items) if item.error is not None}
    ballots = {name: copy.fail(failed).payload for name, copy in outputs.items()}
    return Batch(ballots, items)


def _merged(item: Item, copies: Sequence[Item]) -> Item:
    """An image with all that its copies, one from each member, have gone through."""
    before = len(item.steps)
    return replace(
        item,
        versions={name: version for copy in copies for name, version in copy.versions.items()},
        error=next((copy.error for copy in copies if copy.error is not None), None),
        steps=(*item.steps, *(step for copy in copies for step in copy.steps[before:])),
    )

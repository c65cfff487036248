"""A model that gets copies of images, and is compared with the answers; nobody waits for it, and it has no say."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.payload import PixelSets
from deployments.contract.rollout import ShadowSettings
from graph.capabilities.proportion import proportion
from graph.capabilities.shadow.figures import Pairs, ShadowStats
from graph.flows.asked import Member
from graph.flows.background import PATIENCE_MS, Background, unhurried
from graph.flows.record import Record

if TYPE_CHECKING:
    from graph.capabilities.shadow.metrics import ShadowMetrics

logger = logging.getLogger("ray.serve")

Result = Literal["compared", "failed", "dropped"]
# An image's pixels as they came by, and what came of it.
Copy = tuple[Batch[PixelSets], Record]


class Shadow:
    """Draws images, asks about them once they are answered, and keeps count of what came of it."""

    def __init__(
        self,
        name: str,
        member: Member,
        settings: ShadowSettings,
        replaces: str,
        counts: ShadowMetrics,
        seed: int | None = None,
    ) -> None:
        """Set what is tried.

        Args:
            name: the shadow's.
            member: answers the copies.
            settings: how many there are.
            replaces: the member that it is compared with; empty for none.
            counts: counts what comes of it.
            seed: of the draw.
        """
        self.name, self.settings, self._member, self._replaces = name, settings, member, replaces
        self._counts = counts
        self._random = random.Random(seed)
        self._work = Background()
        self._results: Counter[Result] = Counter()
        self._agreed: dict[str, Counter[bool]] = {}
        self._labelled: dict[str, Counter[tuple[bool, bool]]] = {}

    def check(self, settings: ShadowSettings) -> None:
        """Any settings will do whose fields are in their bounds."""

    def draw(self, items: Sequence[Item]) -> list[int]:
        """The positions of the images that it is to get a copy of; none while it or the ingress is busy."""
        drawn = [
            position
            for position, item in enumerate(items)
            if item.error is None and item.queued_ns and self._random.random() < self.settings.share
        ]
        waited_ms = (time.time_ns() - min((item.queued_ns for item in items if item.queued_ns), default=0)) / 1e6
        if drawn and (self._work.is_busy or waited_ms > self.settings.max_queue_ms):
            self._note("dropped", len(drawn))
            return []
        return drawn

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about images that are answered; returns at once."""
        if self._work.is_busy:
            self._note("dropped", len(copies))
        else:
            self._work.start(self._asked(copies, patience_ms))

    async def _asked(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        batch = Batch.join([([place], part) for place, (part, _) in enumerate(copies)])
        try:
            async with asyncio.timeout((patience_ms or PATIENCE_MS) / 1000):
                answer = await self._member.node(unhurried(Batch(batch.payload[self._member.pixels], batch.items)))
        except Exception as err:
            logger.info("shadow %r has no answer to %d images: %r", self.name, len(copies), err)
            self._note("failed", len(copies))
            return
        self._note("failed", len(copies) - len(answer.live))
        for row, place in enumerate(answer.live):
            self._compare(copies[place][1], int(answer.payload[row].argmax()))

    def _compare(self, record: Record, index: int) -> None:
        self._note("compared", 1)
        for other, predicted in record.others(self._replaces).items():
            self._agreed.setdefault(other, Counter())[predicted == index] += 1
            self._counts.compared(self.name, other, predicted == index)
        record.watchers.append(self._learn)
        record.set_shadow(self.name, index)

    def _learn(self, record: Record, name: str) -> None:
        """Note who was right."""
        if name != self.name:
            return
        right = record.shadows[name] == record.label
        for other, predicted in record.others(self._replaces).items():
            self._labelled.setdefault(other, Counter())[right, predicted == record.label] += 1

    def _note(self, result: Result, images: int) -> None:
        if images:
            self._results[result] += images
            self._counts.shadowed(self.name, result, images)

    def figures(self) -> ShadowStats:
        """What was counted."""
        return ShadowStats(
            self._replaces,
            self._results["failed"],
            self._results["dropped"],
            {other: proportion(by[True], by.total()) for other, by in self._agreed.items()},
            {
                other: Pairs(by[True, True], by[True, False], by[False, True], by[False, False])
                for other, by in self._labelled.items()
            },
        )

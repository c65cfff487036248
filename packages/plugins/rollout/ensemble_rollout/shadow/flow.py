"""A model that gets copies of images, and whose predictions are compared with the answers without changing them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.rollout import ShadowSettings
from ensemble_rollout.record import Copy, Record, count_by_rightness
from graph.features.proportion import Counts, Proportion, proportion
from graph.pipeline.background import PATIENCE_MS, Background, unhurried
from graph.pipeline.member_client import Member

logger = logging.getLogger("ray.serve")


class Pairs(msgspec.Struct, frozen=True):
    """Images with a true label, by which of two predictions was right."""

    both: int
    shadow_only: int
    other_only: int
    neither: int


class ShadowStats(msgspec.Struct, frozen=True):
    """A shadow, since the start of the ingress replica."""

    replaces: Annotated[str, Meta(description="the member that it is compared with; empty for none")]
    failed: Annotated[int, Meta(description="images that it did not answer")]
    dropped: Annotated[int, Meta(description="images that were drawn but not sent to it")]
    agreed: Annotated[
        dict[str, Proportion], Meta(description="with the `ensemble`, and with the member that it replaces")
    ]
    labelled: Annotated[dict[str, Pairs], Meta(description="images with a true label, compared with the same two")]


class ShadowCounters(NamedTuple):
    """The counts of all shadows.

    Attributes:
        images: by shadow, and by what came of them.
        predictions: by shadow, by the compared member or ensemble, and by whether they agreed.
    """

    images: Counts
    predictions: Counts


class Shadow:
    """Draws images, and asks the model about them once they are answered; `settings` says how many."""

    def __init__(
        self,
        name: str,
        member: Member,
        settings: ShadowSettings,
        replaces: str,
        counters: ShadowCounters,
        seed: int | None = None,
    ) -> None:
        """Set the shadow and the name of the member that it is compared with, empty for none."""
        self.name, self.settings, self._member, self._replaces = name, settings, member, replaces
        self._counters = counters
        # Images with a true label, by what the shadow is compared with, and by whether each was right.
        self._labelled: Counter[tuple[str, bool, bool]] = Counter()
        self._random = random.Random(seed)
        self._work = Background()

    def draw(self, items: Sequence[Item]) -> list[int]:
        """Draw the images that it gets a copy of, by position; none while it or the ingress is busy.

        An image whose notes decide predictions is left out: it would compare the shadow with a mix of versions.
        """
        drawn = [
            position
            for position, item in enumerate(items)
            if item.error is None
            and item.queued_ns
            and not item.deciding
            and self._random.random() < self.settings.share
        ]
        waited_ms = (time.time_ns() - min((item.queued_ns for item in items if item.queued_ns), default=0)) / 1e6
        if drawn and (self._work.is_busy or waited_ms > self.settings.max_queue_ms):
            self._count("dropped", len(drawn))
            return []
        return drawn

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about images that are answered; returns at once."""
        if self._work.is_busy:
            self._count("dropped", len(copies))
        else:
            self._work.start(self._ask(copies, patience_ms))

    async def _ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        batch = Batch.join([([place], part) for place, (part, _) in enumerate(copies)])
        try:
            async with asyncio.timeout((patience_ms or PATIENCE_MS) / 1000):
                answer = await self._member.node(unhurried(Batch(batch.payload[self._member.pixels], batch.items)))
        except Exception as err:
            logger.info("shadow %r did not answer %d images: %r", self.name, len(copies), err)
            self._count("failed", len(copies))
            return
        self._count("failed", len(copies) - len(answer.live))
        for row, place in enumerate(answer.live):
            self._compare(copies[place][1], int(answer.payload[row].argmax()))

    def _compare(self, record: Record, index: int) -> None:
        self._count("compared", 1)
        for other, predicted in record.others(self._replaces).items():
            self._counters.predictions.add(self.name, other, predicted == index)
        record.watchers.append(self._judge)
        record.set_shadow(self.name, index)

    def _judge(self, record: Record, name: str) -> None:
        """Count which predictions were right, once the true label is known."""
        if name == self.name:
            right = record.shadows[name] == record.label
            for other, predicted in record.others(self._replaces).items():
                self._labelled[other, right, predicted == record.label] += 1

    def _count(self, result: str, images: int) -> None:
        self._counters.images.add(self.name, result, count=images)

    def figures(self) -> ShadowStats:
        """Return the figures for `/stats`."""
        images, predicted = self._counters.images.counts, self._counters.predictions.counts
        others = dict.fromkeys(str(other) for shadow, other, _ in predicted if shadow == self.name)
        agrees = {other: (predicted[self.name, other, True], predicted[self.name, other, False]) for other in others}
        return ShadowStats(
            self._replaces,
            images[self.name, "failed"],
            images[self.name, "dropped"],
            {other: proportion(yes, yes + no) for other, (yes, no) in agrees.items()},
            {other: Pairs(*count_by_rightness(self._labelled, other)) for other, _, _ in self._labelled},
        )

"""A model that gets copies of images, and whose predictions are compared with the answers without changing them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import Field

from deployments.contract import clock
from deployments.contract.batch import Batch
from deployments.contract.counting import TaggedCounter
from deployments.contract.item import Item
from deployments.contract.payload import Images
from deployments.contract.settings import Schema
from deployments.pipeline.member_client import Member
from ensemble_features.proportion import Proportion, proportion
from ensemble_features.record import Copied, Record, count_by_rightness

logger = logging.getLogger("ray.serve")

# A batch in which an image has waited longer is not copied: the machine is busy.
MOST_QUEUED_MS = 100.0


class ShadowSettings(Schema):
    """How many images a shadow gets a copy of."""

    share: float = Field(ge=0, le=1, description="share of the images that it gets")


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


class ShadowCounters:
    """The counts of all shadows."""

    def __init__(self) -> None:
        self.images = TaggedCounter(
            "ensemble_shadow_images",
            "Images drawn for a shadow: compared, failed or dropped.",
            *("member", "result"),
        )
        self.predictions = TaggedCounter(
            "ensemble_shadow_predictions",
            "Images by whether a shadow agreed with the ensemble, or with the member that it would replace.",
            *("member", "other", "agrees"),
        )


class Shadow(Copied):
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
        super().__init__(member.pixels, seed)
        self.name, self.settings, self._member, self._replaces = name, settings, member, replaces
        self._counters = counters
        # Images with a true label, by what the shadow is compared with, and by whether each was right.
        self._labelled: Counter[tuple[str, bool, bool]] = Counter()

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
        waited_ms = (clock.now_ns() - min((item.queued_ns for item in items if item.queued_ns), default=0)) / 1e6
        if drawn and (self._work.is_busy or waited_ms > MOST_QUEUED_MS):
            self.drop(len(drawn))
            return []
        return drawn

    def drop(self, images: int) -> None:
        """See `Copied`."""
        self._count("dropped", images)

    async def compare(self, images: Batch[Images], records: Sequence[Record], patience_s: float) -> None:
        """See `Copied`."""
        try:
            async with asyncio.timeout(patience_s):
                answer = await self._member.node(images)
        except Exception as err:
            logger.info("shadow %r did not answer %d images: %r", self.name, len(records), err)
            self._count("failed", len(records))
            return
        self._count("failed", len(records) - len(answer.live))
        self._count("compared", len(answer.live))
        for row, place in enumerate(answer.live):
            index, record = int(answer.payload[row].argmax()), records[place]
            others = record.others(self._replaces)
            for other, predicted in others.items():
                self._counters.predictions.add(self.name, other, predicted == index)
            record.when_labelled(partial(self._judge, record, index, others))

    def _judge(self, record: Record, index: int, others: Mapping[str, int], label: int) -> None:
        record.judge("shadow", self.name, "", index == label)
        for other, predicted in others.items():
            self._labelled[other, index == label, predicted == label] += 1

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

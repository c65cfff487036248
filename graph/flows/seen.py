"""What came of an image, as far as it is compared with something later."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.contract.answer import Answer
from deployments.contract.item import Item
from deployments.contract.rollout import Proportion
from graph.flows.interval import wilson

ENSEMBLE = "ensemble"


@dataclass(slots=True)
class Seen:
    """The classes that were named for an image.

    Attributes:
        index: the ensemble's.
        members: each member's that answered, by name.
        versions: of each member that has a canary, the version that answered.
        last: the last member that a cascade asked; empty without one.
        shadows: each shadow's, by name, once it has answered.
        label: the true one, once it is known.
    """

    index: int
    members: dict[str, int]
    versions: dict[str, str] = field(default_factory=dict)
    last: str = ""
    shadows: dict[str, int] = field(default_factory=dict)
    label: int | None = None

    @classmethod
    def of(cls, item: Item, answer: Answer, canaries: tuple[str, ...] = ()) -> Seen:
        """What an answer says, and its item."""
        return cls(
            answer.classification.index,
            {name: vote.index for name, vote in item.votes.items()},
            {name: str(item.versions[name]) for name in canaries if name in item.versions},
            item.asked[-1] if item.asked else "",
        )

    def others(self, replaced: str) -> dict[str, int]:
        """What a shadow is compared with: the ensemble, and the member that it would replace."""
        own = self.members.get(replaced)
        return {ENSEMBLE: self.index} if own is None else {ENSEMBLE: self.index, replaced: own}


def proportion(count: int, total: int) -> Proportion:
    """A share with its 95 % interval."""
    low, mean, high = wilson(count, total)
    return Proportion(count, total, mean if total else None, low, high)

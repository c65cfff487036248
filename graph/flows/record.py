"""What came of an image, as far as it is compared with something later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.contract.answer import Answer
from deployments.contract.item import Item

ENSEMBLE = "ensemble"


@dataclass(slots=True)
class Record:
    """The classes that were predicted for an image.

    Attributes:
        index: the ensemble's.
        members: each member's that answered, by name.
        versions: of each member that has a canary, the version that answered.
        last: the last member that a cascade asked; empty without one.
        shadows: each shadow's, by name, once it has answered.
        label: the true one, once it is known.
        watchers: called with the name of each shadow, once both its answer and the label are known.
    """

    index: int
    members: dict[str, int]
    versions: dict[str, str] = field(default_factory=dict)
    last: str = ""
    shadows: dict[str, int] = field(default_factory=dict)
    label: int | None = None
    watchers: list[Callable[[Record, str], None]] = field(default_factory=list)

    @classmethod
    def of(cls, item: Item, answer: Answer) -> Record:
        """What an answer says, and its item."""
        return cls(
            answer.classification.index,
            {name: vote.index for name, vote in item.votes.items()},
            last=item.asked[-1] if item.asked else "",
        )

    def others(self, replaced: str) -> dict[str, int]:
        """What a shadow is compared with: the ensemble, and the member that it would replace."""
        own = self.members.get(replaced)
        return {ENSEMBLE: self.index} if own is None else {ENSEMBLE: self.index, replaced: own}

    def set_label(self, index: int) -> None:
        """Note the true class."""
        self.label = index
        for name in self.shadows:
            self._complete(name)

    def set_shadow(self, name: str, index: int) -> None:
        """Note a shadow's prediction; it may come before or after the label."""
        self.shadows[name] = index
        if self.label is not None:
            self._complete(name)

    def _complete(self, name: str) -> None:
        for watch in self.watchers:
            watch(self, name)

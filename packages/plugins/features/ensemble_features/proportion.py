"""What features count, and a share that was counted, with its 95 % interval; without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from deployments.contract.proportion import wilson


class Counts(Protocol):
    """A counter by the values of its tags; `deployments.observe.metrics.TaggedCounter` is one."""

    @property
    def counts(self) -> Mapping[Any, int]:
        """The counts by the values of the tags."""
        ...

    def add(self, *values: str | bool, count: int = 1) -> None:
        """Count `count` more with these values of the tags, in order."""
        ...


# Makes a counter of a metric's name, its description, and the names of its tags; `TaggedCounter` is one.
MakesCounts = Callable[..., Counts]


class Proportion(msgspec.Struct, frozen=True):
    """A share that was counted."""

    count: Annotated[int, Meta(description="how many it is true of")]
    total: Annotated[int, Meta(description="of how many")]
    share: Annotated[float | None, Meta(description="their ratio; null if the total is 0")]
    low: Annotated[float, Meta(description="lower end of its 95 % interval (Wilson's)")]
    high: Annotated[float, Meta(description="upper end of its 95 % interval")]


def proportion(count: int, total: int) -> Proportion:
    """Return a share with its 95 % interval."""
    low, mean, high = wilson(count, total)
    return Proportion(count, total, mean if total else None, low, high)

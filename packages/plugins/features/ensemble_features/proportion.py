"""A share that was counted, with its 95 % interval; without Ray."""

from typing import Annotated

import msgspec
from msgspec import Meta

from deployments.contract.proportion import wilson


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

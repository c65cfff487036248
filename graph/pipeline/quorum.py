"""How the members are asked: how many must answer, and how long an answer is waited for."""

from __future__ import annotations

import math
import time
from typing import Any

from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.settings import Schema

# A member's share of the time that a batch has left, where `patience_ms` is not set; the nodes after it have the rest.
PATIENT_SHARE = 0.8


class QuorumSettings(Schema):
    """How the members are asked, and how many must answer."""

    quorum: int | None = Field(None, ge=1, description="members that must answer an image; default: all of them")
    patience_ms: int | None = Field(
        None, ge=1, le=600_000, description="how long a member may take; default: 0.8 of the time that is left"
    )


def waits(batch: Batch[Any], patience_ms: int | None, turns: int = 1) -> list[tuple[float | None, list[int]]]:
    """The images of a batch, by position, by how long a member may take for each, seconds; the shortest first.

    The last ones may take as long as the whole batch, which is None for as long as the members do.

    Args:
        batch: the images.
        patience_ms: the longest that it may take; None for no bound of its own.
        turns: how many members are asked one after the other from now on; they share the time that is left.
    """
    now, found = time.time(), dict[float, list[int]]()
    longest = math.inf if patience_ms is None else patience_ms / 1000
    for position, item in enumerate(batch.items):
        left = math.inf if item.deadline is None else PATIENT_SHARE / turns * (item.deadline - now)
        found.setdefault(min(left, longest), []).append(position)
    return [(None if wait == math.inf else max(0.0, wait), found[wait]) for wait in sorted(found)]


def patience_s(batch: Batch[Any], patience_ms: int | None, turns: int = 1) -> float | None:
    """How long a member may take for the whole batch, seconds; None for as long as the batch itself; see `waits`."""
    return waits(batch, patience_ms, turns)[-1][0]

"""How the members are asked: how many must answer, and how long an answer is waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.settings import Schema

# A member's share of the time that a batch has left, where `patience_ms` is not set; the nodes after it have the rest.
PATIENT_SHARE = 0.8


class AskingSettings(Schema):
    """How the members are asked, and how many must answer."""

    quorum: int | None = Field(None, ge=1, description="members that must answer an image; default: all of them")
    patience_ms: int | None = Field(
        None, ge=1, le=600_000, description="how long a member may take; default: 0.8 of the time that is left"
    )


def patience_s(batch: Batch[Any], patience_ms: int | None, turns: int = 1) -> float | None:
    """How long a member may take, seconds; None for as long as the batch itself.

    Args:
        batch: the images.
        patience_ms: the longest that it may take; None for no bound of its own.
        turns: how many members are asked one after the other from now on; they share the time that is left.
    """
    deadlines = [item.deadline for item in batch.items if item.deadline is not None]
    bounds: Sequence[float] = [patience_ms / 1000] if patience_ms is not None else []
    if len(deadlines) == len(batch.items):
        bounds = [*bounds, PATIENT_SHARE / turns * (max(deadlines) - time.time())]
    return max(0.0, min(bounds)) if bounds else None


def waits(batch: Batch[Any], patience_ms: int | None) -> list[tuple[float | None, list[int]]]:
    """The images of a batch, by position, by how long a member may take for each, seconds; the shortest first.

    The last ones may take as long as the whole batch, which is None for as long as the members do.
    """
    now, found = time.time(), dict[float, list[int]]()
    longest = float("inf") if patience_ms is None else patience_ms / 1000
    for position, item in enumerate(batch.items):
        left = float("inf") if item.deadline is None else PATIENT_SHARE * (item.deadline - now)
        found.setdefault(min(left, longest), []).append(position)
    return [(None if wait == float("inf") else max(0.0, wait), found[wait]) for wait in sorted(found)]

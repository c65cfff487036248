"""The members side by side, and what they say combined; with a quorum, of as many as answer in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from deployments.contract.batch import Batch
from deployments.contract.nodes import Node
from deployments.contract.payload import Ballots, PixelSets, Probabilities
from deployments.contract.settings import Schema
from graph.flows.asked import Asked, Member
from graph.flows.ballots import Outcome, collect

# Of the time that a batch has left, when `patience_ms` does not say: the rest is for what comes after the members.
PATIENT_SHARE = 0.8


class AskingSettings(Schema):
    """How the members are asked, and how many must answer."""

    quorum: int | None = Field(None, ge=1, description="members that must answer an image; default: all of them")
    patience_ms: int | None = Field(
        None, ge=1, le=600_000, description="how long a member may take; default: 0.8 of the time that is left"
    )


class Ensemble:
    """Asks every member; an image that fewer than the quorum have answered has failed."""

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[Ballots, Probabilities],
        settings: AskingSettings = AskingSettings(),  # noqa: B008
    ) -> None:
        """Set the members by name, who combines what they say, and how many must answer."""
        self._asked = [Asked(name, member) for name, member in members.items()]
        self._combiner = combiner
        self._quorum = settings.quorum or len(members)
        self._patience_ms = settings.patience_ms

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities]:
        """Pixels by preprocessing to the ensemble's probabilities, float32 [N,C]."""
        ballots = collect(batch, await self._ask(batch), self._quorum)
        if not ballots.live:
            return Batch(np.empty((0, 0), np.float32), ballots.items)
        return await self._combiner(ballots)

    async def _ask(self, batch: Batch[PixelSets]) -> dict[str, Outcome]:
        patience_s = self._patience_s(batch)
        well = [asked for asked in self._asked if not asked.is_late]
        # Who is late is not waited for again, unless the others are too few.
        enough = len(well) >= self._quorum
        calls = {each: each.ask(batch) for each in (well if enough else self._asked)}
        for asked in self._asked:
            if asked not in calls:
                asked.try_again(batch, patience_s)
        try:
            await asyncio.wait(calls.values(), timeout=patience_s)
        except asyncio.CancelledError:
            for call in calls.values():
                call.cancel()
            raise
        return {asked.name: asked.outcome(calls.get(asked)) for asked in self._asked}

    def _patience_s(self, batch: Batch[PixelSets]) -> float | None:
        """How long a member may take, seconds; None for as long as the batch itself."""
        if self._quorum == len(self._asked):
            return None
        deadlines = [item.deadline for item in batch.items if item.deadline is not None]
        bounds = [self._patience_ms / 1000] if self._patience_ms is not None else []
        if len(deadlines) == len(batch.items):
            bounds.append(PATIENT_SHARE * (max(deadlines) - time.time()))
        return max(0.0, min(bounds)) if bounds else None

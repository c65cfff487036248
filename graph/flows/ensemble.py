"""The members side by side, and what they say combined; with a quorum, of as many as answer in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.nodes import Node
from deployments.contract.payload import Ballots, PixelSets, Probabilities
from graph.flows.asked import Asked, Member, has_quorum
from graph.flows.ballots import Outcome, collect
from graph.flows.patience import AskingSettings, fair_s, patience_s


class Ensemble:
    """Asks every member; an image that fewer than the quorum have answered has failed."""

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[Ballots, Probabilities] | None,
        settings: AskingSettings = AskingSettings(),  # noqa: B008
    ) -> None:
        """Set the members by name, who combines what they say, None for nobody, and how many must answer."""
        self._asked = [Asked(name, member, fair_s(settings.patience_ms)) for name, member in members.items()]
        self._combiner = combiner
        self._quorum = settings.quorum or len(members)
        self._has_quorum = partial(has_quorum, self._asked, self._quorum)
        self._patience_ms = settings.patience_ms

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities | Ballots]:
        """Pixels by preprocessing to probabilities: combined, float32 [N,C], or where nobody combines them, by name."""
        ballots = collect(batch, await self._ask(batch), self._quorum)
        if self._combiner is None:
            return ballots
        if not ballots.live:
            return Batch(np.empty((0, 0), np.float32), ballots.items)
        return await self._combiner(ballots)

    async def _ask(self, batch: Batch[PixelSets]) -> dict[str, Outcome]:
        waits = self._quorum < len(self._asked)
        patience = patience_s(batch, self._patience_ms) if waits else None
        # Who is late is not waited for again, unless the others are too few.
        now = [asked for asked in self._asked if not asked.is_late] if self._has_quorum() else self._asked
        calls = {each: each.ask(batch, self._has_quorum if waits else None) for each in now}
        for asked in self._asked:
            if asked not in calls:
                asked.try_again(batch, patience)
        try:
            await asyncio.wait(calls.values(), timeout=patience)
        except asyncio.CancelledError:
            for call in calls.values():
                call.cancel()
            raise
        return {asked.name: asked.outcome(calls.get(asked), patience) for asked in self._asked}

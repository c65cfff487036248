"""The members, asked side by side, and their combined answer; with a quorum, of as many as answer in time."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.contract.batch import Batch
from deployments.contract.member import NO_SCORES
from deployments.contract.nodes import Node
from deployments.contract.payload import MemberProbabilities, PixelSets, Probabilities
from graph.flows.ballots import Outcome, collect
from graph.flows.member import Member, Members, answered
from graph.flows.patience import AskingSettings


class Ensemble:
    """Asks every member. An image that fewer members than the quorum have answered has failed."""

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[MemberProbabilities, Probabilities] | None,
        settings: AskingSettings = AskingSettings(),  # noqa: B008
    ) -> None:
        """Set the members by name, what combines their predictions (None for nothing), and how they are asked."""
        self._members, self._combiner = Members(members, settings), combiner

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities | MemberProbabilities]:
        """Pixels by preprocessing to probabilities: combined, float32 [N,C], or without a combiner by member's name."""
        ballots = collect(batch, await self._ask(batch), self._members.quorum)
        if self._combiner is None:
            return ballots
        if not ballots.live:
            return Batch(NO_SCORES, ballots.items)
        return await self._combiner(ballots)

    async def _ask(self, batch: Batch[PixelSets]) -> dict[str, Outcome]:
        members = self._members
        patience = members.patience_s(batch)
        # Nobody waits for a late member again, unless the others are too few.
        skips_late = members.has_quorum()
        calls = {each: members.ask(each, batch) for each in members.callers if not (skips_late and each.is_late)}
        for each in members.callers:
            if each not in calls:
                each.try_again(batch, patience)
        await answered(list(calls.values()), patience)
        return {each.name: each.outcome(calls.get(each), patience) for each in members.callers}

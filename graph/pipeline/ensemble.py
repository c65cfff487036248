"""The members, asked side by side, and their combined answer; with a quorum, of as many as answer in time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence

from deployments.contract.batch import Batch
from deployments.contract.member import NO_SCORES
from deployments.contract.nodes import InParts, Node, Part
from deployments.contract.payload import MemberProbabilities, PixelSets, Probabilities
from graph.pipeline.member_client import Call, Member, MemberCall, Members, answered
from graph.pipeline.merging import Outcome, collect, split
from graph.pipeline.quorum import QuorumSettings


class Ensemble(InParts):
    """Asks every member. An image that fewer members than the quorum have answered has failed."""

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[MemberProbabilities, Probabilities] | None,
        settings: QuorumSettings = QuorumSettings(),  # noqa: B008
    ) -> None:
        """Set the members by name, what combines their predictions (None for nothing), and how they are asked."""
        self._members, self._combiner = Members(members, settings), combiner

    async def parts(self, batch: Batch[PixelSets]) -> AsyncIterator[Part]:
        """Pixels by preprocessing to probabilities: combined, float32 [N,C], or without a combiner by member's name.

        Images that have less time than others of the batch are answered by the members that answer in it.
        """
        waits = self._members.waits(batch)
        calls, began = self._ask(batch, waits[-1][0]), time.monotonic()
        asked = [call for call in calls.values() if call is not None]
        outcomes: dict[str, Outcome] = {}
        try:
            while waits:
                wait, due = waits.pop(0)
                left_s = None if wait is None else max(0.0, wait - (time.monotonic() - began))
                await answered(asked, left_s)
                if all(call.done() for call in asked):
                    due, waits = sorted([*due, *(image for _, more in waits for image in more)]), []
                for each, call in calls.items():
                    if each.name not in outcomes and (call is None or call.done() or not waits):
                        outcomes[each.name] = each.outcome(call, wait)
                so_far = {each.name: outcomes.get(each.name, each.unanswered) for each in calls}
                yield due, await self._answer(batch, so_far, due)
        finally:
            # Where the batch is over before, by its deadline or its end, nobody waits for these.
            for each, call in calls.items():
                if call is not None and each.name not in outcomes:
                    call.cancel()

    def _ask(self, batch: Batch[PixelSets], patience: float | None) -> dict[MemberCall, Call | None]:
        """Every member's call; None where the member is late, which is tried once in its patience, seconds."""
        members = self._members
        # Nobody waits for a late member again, unless the others are too few.
        skips_late = members.has_quorum()
        calls = {each: None if skips_late and each.is_late else members.ask(each, batch) for each in members.callers}
        for each, call in calls.items():
            if call is None:
                each.try_again(batch, patience)
        return calls

    async def _answer(
        self, batch: Batch[PixelSets], outcomes: Mapping[str, Outcome], due: Sequence[int]
    ) -> Batch[Probabilities | MemberProbabilities]:
        """The answer to some of the images, by position."""
        if len(due) < len(batch.items):
            batch, outcomes = batch.split(due), split(outcomes, due)
        ballots = collect(batch, outcomes, self._members.quorum)
        if self._combiner is None:
            return ballots
        if not ballots.live:
            return Batch(NO_SCORES, ballots.items)
        return await self._combiner(ballots)

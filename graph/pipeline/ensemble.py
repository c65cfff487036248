"""The members, asked side by side, and their combined answer; with a quorum, of as many as answer in time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError
from deployments.contract.item import Item, ItemNote
from deployments.contract.member import NO_SCORES
from deployments.contract.nodes import Flow, Node, Part
from deployments.contract.payload import MemberProbabilities, PixelSets, Probabilities
from graph.pipeline.member_client import Call, Member, MemberClient, MemberOutcome, Members, QuorumSettings, answered


class Ensemble(Flow):
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
        """Predict probabilities from pixels by preprocessing: combined, float32 [N,C], or by member without a combiner.

        Images that have less time than others of the batch are answered by the members that answer in it.
        """
        deadlines = self._members.deadlines(batch)
        calls, began = self._ask(batch, deadlines[-1][0]), time.monotonic()
        asked = [call for call in calls.values() if call is not None]
        outcomes: dict[str, MemberOutcome] = {}
        try:
            while deadlines:
                wait, due = deadlines.pop(0)
                left_s = None if wait is None else max(0.0, wait - (time.monotonic() - began))
                await answered(asked, left_s)
                if all(call.done() for call in asked):
                    due, deadlines = sorted([*due, *(image for _, more in deadlines for image in more)]), []
                for each, call in calls.items():
                    if each.name not in outcomes and (call is None or call.done() or not deadlines):
                        outcomes[each.name] = each.outcome(call, wait)
                so_far = {each.name: outcomes.get(each.name, each.unanswered) for each in calls}
                yield due, await self._answer(batch, so_far, due)
        finally:
            # Where the batch is over before, by its deadline or its end, nobody waits for these.
            for each, call in calls.items():
                if call is not None and each.name not in outcomes:
                    call.cancel()

    def _ask(self, batch: Batch[PixelSets], patience: float | None) -> dict[MemberClient, Call | None]:
        """Ask every member but the late ones, which are tried once in `patience` seconds; return the calls."""
        members = self._members
        # Nobody waits for a late member again, unless the others are too few.
        skips_late = members.has_quorum()
        calls = {
            each: None if skips_late and each.breaker.is_open else members.ask(each, batch) for each in members.clients
        }
        for each, call in calls.items():
            if call is None:
                each.try_again(batch, patience)
        return calls

    async def _answer(
        self, batch: Batch[PixelSets], outcomes: Mapping[str, MemberOutcome], due: Sequence[int]
    ) -> Batch[Probabilities | MemberProbabilities]:
        """Answer some of the images, by position."""
        if len(due) < len(batch.items):
            batch, outcomes = batch.split(due), split(outcomes, due)
        ballots = merge_member_outputs(batch, outcomes, self._members.quorum)
        if self._combiner is None:
            return ballots
        if not ballots.live:
            return Batch(NO_SCORES, ballots.items)
        return await self._combiner(ballots)


def merge_member_outputs(
    asked: Batch[PixelSets], outcomes: Mapping[str, MemberOutcome], quorum: int
) -> Batch[MemberProbabilities]:
    """Merge the members' answers to a batch, by name; an image that fewer than `quorum` answered has failed.

    Its error is that of the first member that failed. A row of NaN stands for an answer that is missing.
    """
    items = tuple(_merged(item, position, outcomes, quorum) for position, item in enumerate(asked.items))
    live = [position for position, item in enumerate(items) if item.error is None]
    rows = {name: _rows(outcome, live) for name, outcome in outcomes.items() if isinstance(outcome, Batch)}
    return Batch({name: part for name, part in rows.items() if part is not None}, items)


def split(outcomes: Mapping[str, MemberOutcome], positions: Sequence[int]) -> dict[str, MemberOutcome]:
    """Take the members' answers to some of the images, by position; see `Batch.split`."""
    return {name: each.split(positions) if isinstance(each, Batch) else each for name, each in outcomes.items()}


def _merged(item: Item, position: int, outcomes: Mapping[str, MemberOutcome], quorum: int) -> Item:
    """Make an image with what its copies, one from each member that answered the batch, have gained."""
    if item.error is not None:
        return item
    copies, failed = list[Item](), dict[str, EnsembleError]()
    for name, outcome in outcomes.items():
        if isinstance(outcome, EnsembleError):
            failed[name] = outcome
            continue
        copies.append(copy := outcome.items[position])
        if copy.error is not None:
            failed[name] = copy.error
    too_few = len(outcomes) - len(failed) < quorum
    before = len(item.steps)
    return replace(
        item,
        notes=_merged_notes(item, copies) if item.notes else item.notes,
        versions={name: version for copy in copies for name, version in copy.versions.items()},
        missing={} if too_few else {name: error.code for name, error in failed.items()},
        error=next(iter(failed.values())) if too_few else None,
        steps=(*item.steps, *(step for copy in copies for step in copy.steps[before:])),
    )


def _merged_notes(item: Item, copies: Sequence[Item]) -> dict[str, Any]:
    """Merge the notes of an image's copies: one note of each class."""
    notes = dict(item.notes)
    for name, note in item.notes.items():
        if isinstance(note, ItemNote):
            of_copies = [copy.note(type(note)) for copy in copies]
            notes[name] = note.merge([each for each in of_copies if each is not None])
    return notes


def _rows(answer: Batch[Probabilities], live: Sequence[int]) -> Probabilities | None:
    """Take a member's answers to these images; None if the member has none."""
    if len(answer.payload) == len(live) == len(answer.items):
        return answer.payload
    row_of = {position: row for row, position in enumerate(answer.live)}
    pairs = [(row, row_of[position]) for row, position in enumerate(live) if position in row_of]
    if not pairs:
        return None
    result = np.full((len(live), answer.payload.shape[1]), np.nan, np.float32)
    to, of = zip(*pairs, strict=True)
    result[list(to)] = answer.payload[list(of)]
    return result

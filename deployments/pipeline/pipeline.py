"""Nodes one after another, members side by side, and interceptors around a graph, which mark images and see answers."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import NO_SCORES, Batch
from deployments.contract.item import Item, ItemNote
from deployments.contract.nodes import Flow, Graph, Node, Part, as_flow
from deployments.contract.payload import CombinedProbabilities, MemberProbabilities, PixelSets, Probabilities
from deployments.pipeline.member_client import (
    Call,
    Member,
    MemberClient,
    MemberOutcome,
    Members,
    QuorumSettings,
    failure,
)

logger = logging.getLogger("ray.serve")

FAILED = "an interceptor failed; the answers are returned"
Answered = Batch[Sequence[Answer]]
# Images by position that are due, and by name what each member says to the whole batch.
Answers = tuple[Sequence[int], Mapping[str, MemberOutcome]]


class Pipeline(Flow):
    """Nodes in a row, each of which takes what the one before returns. Without a live image the rest are not called."""

    def __init__(self, *nodes: Node[Any, Any]) -> None:
        """Set the nodes; the first flow among them has the nodes behind it as a pipeline of their own."""
        place = next((place for place, node in enumerate(nodes) if isinstance(node, Flow)), len(nodes))
        self._nodes, rest = nodes[:place], nodes[place:]
        self._flow: Flow | None = as_flow(rest[0]) if rest else None
        self._rest = Pipeline(*rest[1:]) if rest else None
        self.first_pixels = None if self._flow is None else self._flow.first_pixels

    async def parts(self, batch: Batch[Any]) -> AsyncIterator[Part]:
        """Return what the last node returns; a part that a flow returns passes the rest before the other parts."""
        for node in self._nodes:
            if not batch.live:
                break
            batch = await node(batch)
        if not batch.live or self._flow is None or self._rest is None:
            yield range(len(batch.items)), batch if batch.live else Batch([], batch.items)
            return
        async for positions, part in self._flow.parts(batch):
            async for places, done in self._rest.parts(part):
                yield [positions[place] for place in places], done


class Combined:
    """Combines the members' predictions, unless the node that called the members has combined them."""

    def __init__(self, combiner: Node[MemberProbabilities, Probabilities]) -> None:
        self._combiner = combiner

    async def __call__(self, batch: Batch[MemberProbabilities]) -> Batch[Probabilities]:
        """Combine float32 [N,C] by name to float32 [N,C]."""
        if isinstance(batch.payload, CombinedProbabilities):
            return Batch(batch.payload.combined, batch.items)
        return await self._combiner(batch)


class Ensemble(Flow):
    """Asks every member. An image that fewer members than the quorum have answered has failed."""

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[MemberProbabilities, Probabilities] | None,
        settings: QuorumSettings = QuorumSettings(),  # noqa: B008
    ) -> None:
        """Set the members by name, what combines their predictions (None for nothing), and how they are asked."""
        self._all_members, self._members, self._combiner = members, Members(members, settings), combiner

    async def parts(self, batch: Batch[PixelSets]) -> AsyncIterator[Part]:
        """Predict probabilities from pixels by preprocessing: combined, float32 [N,C], or by member without a combiner.

        Images that have less time than others of the batch are answered by the members that answer in it.
        """
        async with aclosing(self._some_in_time(batch) if self._members.can_miss else self._all(batch)) as answers:
            async for due, outcomes in answers:
                some, theirs = batch, outcomes
                if len(due) < len(batch.items):
                    some, theirs = batch.split(due), split(outcomes, due)
                ballots = merge_member_outputs(some, theirs, self._members.quorum)
                if self._combiner is None:
                    yield due, ballots
                else:
                    yield due, await self._combiner(ballots) if ballots.live else Batch(NO_SCORES, ballots.items)

    async def _all(self, batch: Batch[PixelSets]) -> AsyncGenerator[Answers, None]:
        """Wait for every member, as long as the batch does."""
        # All are made: only a flow with `first_pixels` gets some that are deferred.
        pixels: Mapping[str, Any] = batch.payload
        calls = (each.node(Batch(pixels[each.pixels], batch.items)) for each in self._all_members.values())
        found = zip(self._all_members, await asyncio.gather(*calls, return_exceptions=True), strict=True)
        yield (
            range(len(batch.items)),
            {name: each if isinstance(each, Batch) else failure(name, each) for name, each in found},
        )

    async def _some_in_time(self, batch: Batch[PixelSets]) -> AsyncGenerator[Answers, None]:
        """Wait for members that can be missed, until each group of the images must be answered."""
        deadlines = self._members.deadlines(batch)
        calls, began = self._ask(batch, deadlines[-1][0]), time.monotonic()
        asked = list(filter(None, calls.values()))
        outcomes: dict[MemberClient, MemberOutcome] = {}
        try:
            while deadlines:
                wait, due = deadlines.pop(0)
                left_s = None if wait is None else max(0.0, wait - (time.monotonic() - began))
                _, unanswered = await asyncio.wait(asked, timeout=left_s)
                if not unanswered:
                    due, deadlines = sorted(chain(due, *map(itemgetter(1), deadlines))), []
                waiting = unanswered if deadlines else set()
                ended = [each for each in calls if each not in outcomes and calls[each] not in waiting]
                outcomes |= {each: each.outcome(calls[each], wait) for each in ended}
                yield due, {each.name: outcomes.get(each, each.unanswered) for each in calls}
        finally:
            # Where the batch is over before, by its deadline or its end, nobody waits for these.
            for each in calls.keys() - outcomes.keys():
                if (call := calls[each]) is not None:
                    call.cancel()

    def _ask(self, batch: Batch[PixelSets], patience: float | None) -> dict[MemberClient, Call | None]:
        """Ask every member but the late ones, which are tried once in `patience` seconds; return the calls."""
        members = self._members
        late = [each for each in members.clients if each.breaker.is_open]
        # Nobody waits for a late member again, unless the others are too few.
        if late and not members.has_quorum():
            late = []
        calls = {each: None if each in late else each.ask(batch) for each in members.clients}
        for each in late:
            each.try_again(batch, patience)
        return calls


def merge_member_outputs(
    asked: Batch[PixelSets], outcomes: Mapping[str, MemberOutcome], quorum: int
) -> Batch[MemberProbabilities]:
    """Merge the members' answers to a batch, by name; an image that fewer than `quorum` answered has failed.

    Its error is the error of the first member that failed. A row of NaN stands for an answer that is missing.
    """
    items = tuple(_merged(item, position, outcomes, quorum) for position, item in enumerate(asked.items))
    live = [position for position, item in enumerate(items) if item.error is None]
    rows: dict[str, Probabilities] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, Batch):
            is_whole = len(outcome.payload) == len(live) == len(items)
            part = outcome.payload if is_whole else _rows(outcome, live)
            if part is not None:
                rows[name] = part
    return Batch(rows, items)


def split(outcomes: Mapping[str, MemberOutcome], positions: Sequence[int]) -> dict[str, MemberOutcome]:
    """Take the members' answers to some of the images, by position; see `Batch.split`."""
    return {name: each.split(positions) if isinstance(each, Batch) else each for name, each in outcomes.items()}


def _merged(item: Item, position: int, outcomes: Mapping[str, MemberOutcome], quorum: int) -> Item:
    """Make an image with what its copies, one from each member that answered the batch, have gained."""
    if item.error is not None:
        return item
    copies = [each.items[position] for each in outcomes.values() if isinstance(each, Batch)]
    errors = {name: each.items[position].error if isinstance(each, Batch) else each for name, each in outcomes.items()}
    failed = {name: error for name, error in errors.items() if error is not None}
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
    row_of = {position: row for row, position in enumerate(answer.live)}
    pairs = [(row, row_of[position]) for row, position in enumerate(live) if position in row_of]
    if not pairs:
        return None
    result = np.full((len(live), answer.payload.shape[1]), np.nan, np.float32)
    to, of = zip(*pairs, strict=True)
    result[list(to)] = answer.payload[list(of)]
    return result


@dataclass(eq=False)
class InFlight:
    """A batch on its way through the graph.

    Attributes:
        sent: the batch as it came.
        items: its items as the graph gets them; interceptors mark them here.
        kept: what interceptors keep of it for one another, by a class of theirs.
    """

    sent: Batch[Sequence[bytes]]
    items: list[Item]
    kept: dict[type, Any] = field(default_factory=dict)

    @property
    def images(self) -> Mapping[int, bytes]:
        """The images that clients sent, by position. Warm-up images have no place in the queue, and are left out."""
        images = zip(self.sent.live, self.sent.payload, strict=True)
        return {position: image for position, image in images if self.sent.items[position].queued_ns}


class Interceptor:
    """Sees batches before and after the graph. Each method does nothing unless it is overridden.

    Attributes:
        of_members: whether it sees batches of members that are asked by themselves, too. One does: an answer has a cost
            whichever graph makes it.
        sees_all: whether it sees every batch; otherwise it sees a batch in which an image has the option `option`.
        option: the name of a request's option. One feature has one, so that nobody else's batch waits for it.
    """

    of_members = False
    sees_all = True
    option = ""

    def on_request(self, batch: InFlight) -> None:
        """Mark images in `batch.items` before the graph gets them."""

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """See some of the images when they are done, by their positions; the returned images go on in their place."""
        return part

    def on_end(self, batch: InFlight) -> None:
        """See the batch when every image is done, or when the batch was cancelled."""


class Intercepted(Flow):
    """A graph with interceptors around it."""

    def __init__(self, graph: Graph, interceptors: Sequence[Interceptor]) -> None:
        """Set the graph, from encoded images to answers, and the interceptors in the order in which they are called."""
        self._graph, self._interceptors = as_flow(graph), interceptors

    async def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """Turn encoded images into answers, in the parts that the graph returns."""
        interceptors = [
            each
            for each in self._interceptors
            if each.sees_all or any([getattr(item.options, each.option) for item in batch.items])
        ]
        in_flight = InFlight(batch, list(batch.items))
        for each in interceptors:
            each.on_request(in_flight)
        try:
            async for positions, part in self._graph.parts(Batch(batch.payload, tuple(in_flight.items))):
                for each in interceptors:
                    try:
                        part = each.on_part(in_flight, positions, part)
                    except Exception:
                        logger.exception(FAILED)
                yield positions, part
        finally:
            for each in interceptors:
                try:
                    each.on_end(in_flight)
                except Exception:
                    logger.exception(FAILED)

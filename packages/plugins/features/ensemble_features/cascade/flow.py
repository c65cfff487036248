"""The members one after the other: an image is answered as soon as the called members are sure of it together.

The largest combined probability of the image decides. Source of the idea: https://arxiv.org/abs/2012.01988
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deployments.contract.batch import NO_SCORES, Batch
from deployments.contract.errors import EnsembleError
from deployments.contract.item import Item, ItemNote
from deployments.contract.nodes import Flow, Node, Part
from deployments.contract.options import LOWER
from deployments.contract.payload import CombinedProbabilities, MemberProbabilities, PixelSets, Probabilities
from deployments.pipeline.member_client import Member, MemberClient, MemberOutcome, Members, QuorumSettings, answered
from deployments.pipeline.pipeline import merge_member_outputs, split
from ensemble_features.background import PATIENCE_MS, Background, unhurried
from ensemble_features.cascade.audit import Audit
from ensemble_features.cascade.ladder import Accepted, Ladder, Rung
from ensemble_features.cascade.settings import CascadeSettings, UnderLoadSettings

# `full_share` is taken of at least so many images.
FEWEST = 10


class LoadState:
    """Follows how long images wait in the queue.

    Attributes:
        is_on: whether the lower thresholds are in force.
        rung: the lower thresholds.
    """

    def __init__(self, settings: UnderLoadSettings) -> None:
        self.is_on = False
        self.rung = Rung(settings.exit_at)
        self._settings = settings
        self._images = self._full = 0

    def see(self, batch: Batch[object]) -> None:
        """Begin or end by how long the batch's first image has waited until a node took it."""
        waits = [item.steps[0].note.start_ns - item.queued_ns for item in batch.items if item.queued_ns and item.steps]
        if not waits:
            return
        waited_ms = max(waits) / 1e6
        if not self.is_on and waited_ms >= self._settings.from_queue_ms:
            self.is_on, self._images, self._full = True, 0, 0
        elif self.is_on and waited_ms <= self._settings.until_queue_ms:
            self.is_on = False
        self._images += len(batch.items)

    def grants(self, item: Item) -> bool:
        """Tell whether every member is asked about an image, as its caller wants; under load, grant only a share."""
        if item.options.quality != "full":
            return False
        if not self.is_on:
            return True
        if self._full + 1 > self._settings.full_share * max(self._images, FEWEST):
            return False
        self._full += 1
        return True


logger = logging.getLogger("ray.serve")

# Never leaves the cascade: the error of an image that is not combined yet.
NOT_JUDGED = EnsembleError("more members are asked")
# How sure the members were of an early exit, the class that they answered, and the thresholds.
Exit = tuple[float, int, Rung]
Exits = Mapping[int, Exit]
# A threshold for each image, float32 [N].
Thresholds = NDArray[np.float32]


class LoadShed(ItemNote, frozen=True):
    """Says of an image that fewer members were asked about it because of the load."""

    is_lasting = False


@dataclass(frozen=True)
class Stage:
    """The predictions of the members that were asked so far.

    Attributes:
        ballots: each member's.
        combined: their combined predictions, float32 [N,C], of the same images; all but the judged ones have failed.
        judged: the positions of the images that may leave.
    """

    ballots: Batch[MemberProbabilities]
    combined: Batch[Probabilities]
    judged: Sequence[int]

    def sure(self, exit_at: Thresholds) -> list[int]:
        """Return the judged images whose largest probability reaches its threshold, or that the combiner has failed."""
        largest = self.combined.payload.max(axis=1, initial=0.0)
        unsure = {image for image, each in zip(self.combined.live, largest, strict=True) if each < exit_at[image]}
        return [image for image in self.judged if image not in unsure]

    def exits(self, sure: Sequence[int], rungs: Sequence[Rung]) -> Exits:
        """Return the images that the combiner has not failed, by position."""
        row_of = dict(zip(self.combined.live, self.combined.payload, strict=True))
        rows = {image: row_of[image] for image in sure if image in row_of}
        return {image: (float(row.max()), int(row.argmax()), rungs[image]) for image, row in rows.items()}

    def part(
        self, leaving: Sequence[int], asked: tuple[str, ...], load_shed: Container[int], rungs: Sequence[Rung]
    ) -> Part:
        """Take out the images that leave by their rungs; images in `load_shed` would stay at a lower load."""
        ballots, combined = self.ballots.split(leaving), self.combined.split(leaving)
        pairs = zip(leaving, combined.items, strict=True)
        items = tuple(
            item if item.error else _noted(item, asked, image in load_shed, rungs[image]) for image, item in pairs
        )
        return leaving, Batch(CombinedProbabilities(ballots.payload, combined.payload), items)


class Cascade(Flow):
    """Asks the members in turn. The images that those asked are sure of leave; the rest of the batch goes on.

    A member that fails on an image is missing, and the image goes on to the next one. An image that more members have
    failed on than the quorum allows has failed.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[MemberProbabilities, Probabilities],
        asking: QuorumSettings,
        settings: CascadeSettings,
        audit: Audit | None = None,
        loads: Sequence[LoadState] = (),
        ladder: Ladder | None = None,
    ) -> None:
        """Set the members and thresholds, and the thresholds that requests choose.

        `loads` has the load of the usual class and of the lower one, if there are thresholds for load.
        """
        self._members = Members({name: members[name] for name in settings.order}, asking)
        self.first_pixels = frozenset({members[settings.order[0]].pixels})
        self._usual = Rung(settings.exit_at if audit is None else audit.exit_at)
        self._ladder = ladder or Ladder((), len(settings.exit_at))
        self._audit, self._audits, self._loads = audit, Background(), loads
        self._combiner = combiner
        self._audit_s = (asking.patience_ms or PATIENCE_MS) / 1000

    async def parts(self, batch: Batch[PixelSets]) -> AsyncIterator[Part]:
        """Predict from pixels by preprocessing with the members called: float32 [N,C] by name, combined already.

        Early exits don't wait for the images that go on.
        """
        positions: Sequence[int] = range(len(batch.items))
        outcomes: dict[str, MemberOutcome] = {}
        asked: tuple[str, ...] = ()
        chosen = self._rungs(batch)
        clients = self._members.clients
        for number, member in enumerate(clients):
            is_asked, outcomes[member.name] = await self._ask(member, batch, len(clients) - number)
            asked = (*asked, member.name) if is_asked else asked
            rungs, unloaded = [rung for rung, _ in chosen], [rung for _, rung in chosen]
            exit_at = _thresholds(rungs, number) if number < len(clients) - 1 else None
            stage = await self._stage(batch, outcomes, exit_at)
            if exit_at is None:
                for rung in rungs:
                    rung.count(is_exit=False)
                yield _named(positions, stage.part(range(len(positions)), asked, (), unloaded))
                return
            sure = stage.sure(exit_at)
            # These would stay, if the load were lower.
            load_shed = set(sure).difference(sure if unloaded == rungs else stage.sure(_thresholds(unloaded, number)))
            for image in sure:
                rungs[image].count(is_exit=True)
            if self._audit is not None:
                self._look_again(self._audit, number, batch, outcomes, stage.exits(sure, rungs))
            staying = sorted(set(stage.ballots.live) - set(sure))
            if leaving := sorted(set(range(len(positions))) - set(staying)):
                # Where the load changes nothing, a kept answer must not name its rung.
                told = [rungs[image] if image in load_shed else unloaded[image] for image in range(len(positions))]
                yield _named(positions, stage.part(leaving, asked, load_shed, told))
                positions, chosen = [positions[i] for i in staying], [chosen[i] for i in staying]
                batch, outcomes = batch.split(staying), split(outcomes, staying)
            if not staying:
                return

    def _rungs(self, batch: Batch[PixelSets]) -> list[tuple[Rung, Rung]]:
        """Choose each image's rung, and the rung that it would have at a low load."""
        load: LoadState | None = None
        if self._loads:
            # The queue mixes the classes only where images are cached, and those wait for nothing.
            load = self._loads[all(item.options.priority >= LOWER for item in batch.items)]
            load.see(batch)
        return [self._rung(item, load if load is not None and load.is_on else None) for item in batch.items]

    def _rung(self, item: Item, load: LoadState | None) -> tuple[Rung, Rung]:
        rungs, accepted = self._ladder.rungs, item.note(Accepted)
        if accepted is not None:
            return rungs[accepted.rung if load is None else accepted.under_load], rungs[accepted.rung]
        unloaded = rungs[0] if item.options.quality == "full" else self._usual
        return unloaded if load is None or load.grants(item) else load.rung, unloaded

    async def _ask(self, member: MemberClient, batch: Batch[PixelSets], turns: int) -> tuple[bool, MemberOutcome]:
        """Ask a member, unless it is late; tell whether it was asked, and return its answer."""
        patience = self._members.patience_s(batch, turns)
        # Nobody waits for a late member again, unless the others are too few.
        if member.breaker.is_open and self._members.has_quorum():
            member.try_again(batch, patience)
            return False, member.outcome(None, None)
        call = member.ask(batch)
        await answered([call], patience)
        return True, member.outcome(call, patience)

    async def _stage(
        self, batch: Batch[PixelSets], outcomes: dict[str, MemberOutcome], exit_at: Thresholds | None
    ) -> Stage:
        """Combine the predictions so far of images that may leave by their thresholds, None after the last member."""
        # An image may still fail on as many members as the quorum can do without.
        ballots = merge_member_outputs(
            batch, outcomes, len(outcomes) - (len(self._members.clients) - self._members.quorum)
        )
        # The threshold is that of the newest member, and says nothing of the others alone.
        newest = next(reversed(outcomes))
        judged = [
            i for i in ballots.live if exit_at is None or (exit_at[i] <= 1 and newest not in ballots.items[i].missing)
        ]
        shown = ballots.fail(dict.fromkeys(set(ballots.live).difference(judged), NOT_JUDGED))
        combined = await self._combiner(shown) if judged else Batch(NO_SCORES, shown.items)
        failed = {i: error for i in judged if (error := combined.items[i].error) is not None}
        return Stage(ballots.fail(failed), combined, judged)

    def _look_again(
        self, audit: Audit, number: int, batch: Batch[PixelSets], outcomes: Mapping[str, MemberOutcome], exits: Exits
    ) -> None:
        """Ask the other members about some of the exits, in the background, unless they are busy already."""
        drawn = audit.draw(list(exits))
        if not drawn:
            return
        is_loaded = any(load.is_on for load in self._loads)
        if self._audits.is_busy or is_loaded or any(member.breaker.is_open for member in self._members.clients):
            audit.drop(number, len(drawn))
            return
        predictions: dict[str, MemberOutcome] = {
            name: each.split(drawn) for name, each in outcomes.items() if isinstance(each, Batch)
        }
        part = unhurried(batch.split(drawn))
        self._audits.start(self._run_audit(audit, number, part, predictions, [exits[image] for image in drawn]))

    async def _run_audit(
        self,
        audit: Audit,
        number: int,
        batch: Batch[PixelSets],
        outcomes: dict[str, MemberOutcome],
        exits: Sequence[Exit],
    ) -> None:
        try:
            async with asyncio.timeout(self._audit_s):
                for member in self._members.clients[number + 1 :]:
                    outcomes[member.name] = await member.ask(batch, waits=True)
                answer = await self._combiner(merge_member_outputs(batch, outcomes, len(self._members.clients)))
        except Exception as err:
            # The cascade logs a member's failure when it needs the member.
            logger.info("an audit of %d exits came to nothing: %r", len(exits), err)
            audit.drop(number, len(exits))
            return
        row_of = {position: row for row, position in enumerate(answer.live)}
        for position, (confidence, index, rung) in enumerate(exits):
            if position in row_of:
                differs = int(answer.payload[row_of[position]].argmax()) != index
                audit.note(number, confidence, differs, rung is self._usual)
                rung.note(differs)
            else:
                audit.drop(number, 1)


def _thresholds(rungs: Sequence[Rung], number: int) -> Thresholds:
    """Return each image's threshold after a member."""
    return np.array([rung.exit_at[number] for rung in rungs], np.float32)


def _noted(item: Item, asked: tuple[str, ...], load_shed: bool, rung: Rung) -> Item:
    """Add to an image's answer which members were asked and why, and note where the load has cut them short."""
    fields = {"asked": asked, "load_shed": load_shed or None, "rung": rung.status(not item.missing)}
    return item.with_note(LoadShed(), **fields) if load_shed else replace(item, extras={**item.extras, **fields})


def _named(positions: Sequence[int], part: Part) -> Part:
    """Return a part of the images that are left, by their positions in the batch that came."""
    return [positions[place] for place in part[0]], part[1]

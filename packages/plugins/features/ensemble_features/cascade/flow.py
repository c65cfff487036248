"""The members one after the other: an image is answered as soon as the called members are sure of it together.

The largest combined probability of the image decides. Source of the idea: https://arxiv.org/abs/2012.01988
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

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
from ensemble_features.cascade.settings import CascadeSettings, UnderLoadSettings

# `full_share` is taken of at least so many images.
FEWEST = 10


class LoadState:
    """Follows how long images wait in the queue.

    Attributes:
        is_on: whether the lower thresholds are in force.
        exit_at: the lower thresholds.
    """

    def __init__(self, settings: UnderLoadSettings) -> None:
        self.is_on = False
        self.exit_at: Sequence[float] = settings.exit_at
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
# How sure the members were of an early exit, and the class that they answered.
Exit = tuple[float, int]


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

    def sure(self, threshold: float) -> list[int]:
        """Return the judged images whose largest probability reaches the threshold, or that the combiner has failed."""
        largest = self.combined.payload.max(axis=1, initial=0.0)
        unsure = {image for image, each in zip(self.combined.live, largest, strict=True) if each < threshold}
        return [image for image in self.judged if image not in unsure]

    def exits(self, threshold: float) -> dict[int, Exit]:
        """Return the judged images whose largest probability reaches the threshold, by position."""
        row_of = dict(zip(self.combined.live, self.combined.payload, strict=True))
        rows = {image: row_of[image] for image in self.sure(threshold) if image in row_of}
        return {image: (float(row.max()), int(row.argmax())) for image, row in rows.items()}

    def part(self, leaving: Sequence[int], asked: tuple[str, ...], load_shed: Container[int]) -> Part:
        """Take out the images that leave; images in `load_shed` would stay at a lower load."""
        ballots, combined = self.ballots.split(leaving), self.combined.split(leaving)
        pairs = zip(leaving, combined.items, strict=True)
        items = tuple(item if item.error else _noted(item, asked, image in load_shed) for image, item in pairs)
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
    ) -> None:
        """Set the members and thresholds.

        `loads` has the load of the usual class and of the lower one, if there are thresholds for load.
        """
        self._members = Members({name: members[name] for name in settings.order}, asking)
        self.first_pixels = frozenset({members[settings.order[0]].pixels})
        self._exit_at: Sequence[float] = settings.exit_at if audit is None else audit.exit_at
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
        exit_at, full = self._thresholds(batch)
        clients = self._members.clients
        for number, member in enumerate(clients):
            is_asked, outcomes[member.name] = await self._ask(member, batch, len(clients) - number)
            asked = (*asked, member.name) if is_asked else asked
            is_last = number == len(clients) - 1
            stage = await self._stage(batch, outcomes, None if is_last else full)
            if is_last:
                yield _named(positions, stage.part(range(len(positions)), asked, ()))
                return
            sure = stage.sure(exit_at[number])
            # All members would be asked about these, if the load were lower.
            load_shed = {image for image in sure if batch.items[image].options.quality == "full"}
            if exit_at[number] < self._exit_at[number]:
                load_shed |= set(sure) - set(stage.sure(self._exit_at[number]))
            if self._audit is not None:
                self._look_again(self._audit, number, batch, outcomes, stage)
            staying = sorted(set(stage.ballots.live) - set(sure))
            if leaving := sorted(set(range(len(positions))) - set(staying)):
                yield _named(positions, stage.part(leaving, asked, load_shed))
                positions, full = [positions[i] for i in staying], [full[i] for i in staying]
                batch, outcomes = batch.split(staying), split(outcomes, staying)
            if not staying:
                return

    def _thresholds(self, batch: Batch[PixelSets]) -> tuple[Sequence[float], list[bool]]:
        """Return the thresholds in force, and which images every member is to be asked about."""
        if not self._loads:
            return self._exit_at, [item.options.quality == "full" for item in batch.items]
        # The queue mixes the classes only where images are cached, and those wait for nothing.
        load = self._loads[all(item.options.priority >= LOWER for item in batch.items)]
        load.see(batch)
        # Read anew for each batch: an audit may raise the usual ones.
        exit_at = load.exit_at if load.is_on else self._exit_at
        return exit_at, [load.grants(item) for item in batch.items]

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
        self, batch: Batch[PixelSets], outcomes: dict[str, MemberOutcome], full: Sequence[bool] | None
    ) -> Stage:
        """Combine the predictions so far; `full` says which images every member is asked about, None after the last."""
        # An image may still fail on as many members as the quorum can do without.
        ballots = merge_member_outputs(
            batch, outcomes, len(outcomes) - (len(self._members.clients) - self._members.quorum)
        )
        # The threshold is that of the newest member, and says nothing of the others alone.
        newest = next(reversed(outcomes))
        judged = [i for i in ballots.live if full is None or not (full[i] or newest in ballots.items[i].missing)]
        shown = ballots.fail(dict.fromkeys(set(ballots.live).difference(judged), NOT_JUDGED))
        combined = await self._combiner(shown) if judged else Batch(NO_SCORES, shown.items)
        failed = {i: error for i in judged if (error := combined.items[i].error) is not None}
        return Stage(ballots.fail(failed), combined, judged)

    def _look_again(
        self, audit: Audit, number: int, batch: Batch[PixelSets], outcomes: Mapping[str, MemberOutcome], stage: Stage
    ) -> None:
        """Ask the other members about some of the exits, in the background, unless they are busy already."""
        exits = stage.exits(self._exit_at[number])
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
        for position, (confidence, index) in enumerate(exits):
            if position in row_of:
                audit.note(number, confidence, int(answer.payload[row_of[position]].argmax()) != index)
            else:
                audit.drop(number, 1)


def _noted(item: Item, asked: tuple[str, ...], load_shed: bool) -> Item:
    """Add to an image's answer which members were asked, and note where the load has cut them short."""
    fields = {"asked": asked, "load_shed": load_shed or None}
    return item.with_note(LoadShed(), **fields) if load_shed else replace(item, extras={**item.extras, **fields})


def _named(positions: Sequence[int], part: Part) -> Part:
    """Return a part of the images that are left, by their positions in the batch that came."""
    return [positions[place] for place in part[0]], part[1]

"""The members one after the other: an image is answered once those that were asked are sure of it together.

The largest probability of the combination decides, image by image. The margin to the second largest decides alike:
docs/cascade.md has both, measured. Source of the idea: https://arxiv.org/abs/2012.01988
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.nodes import Node, Part, joined
from deployments.contract.payload import Ballots, PixelSets, Probabilities
from graph.capabilities.cascade.audit import Audit
from graph.capabilities.cascade.load import LoadState
from graph.capabilities.cascade.settings import CascadeSettings
from graph.flows.asked import Asked, Member, has_quorum
from graph.flows.background import PATIENCE_MS, Background, unhurried
from graph.flows.ballots import Outcome, collect
from graph.flows.patience import AskingSettings, fair_s, patience_s

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Ended:
    """Images that are asked no further.

    Attributes:
        positions: theirs in the batch that came.
        ballots: what the members that were asked said of them.
        combined: that combined, float32 [N,C].
    """

    positions: Sequence[int]
    ballots: Batch[Ballots]
    combined: Batch[Probabilities]


class Cascade:
    """Asks the members in turn: the images that those asked are sure of leave, and the rest of the batch goes on.

    A member that fails on an image is missing, and the image goes on to the next one; an image that more members
    failed on than the quorum allows has failed.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        combiner: Node[Ballots, Probabilities],
        asking: AskingSettings,
        settings: CascadeSettings,
        audit: Audit | None = None,
        load: LoadState | None = None,
        *,
        combined: bool = True,
    ) -> None:
        """Set how members are asked.

        Args:
            members: by name.
            combiner: combines what they say.
            asking: how many must answer, and in which time.
            settings: in which order they are asked, and until when.
            audit: draws exits to look at again; None for no audit.
            load: tells when lower thresholds are in force; None for never.
            combined: whether it gives what was said combined, or as each member said it.
        """
        fair = fair_s(asking.patience_ms)
        self._asked = [Asked(name, members[name], fair) for name in settings.order]
        self._exit_at: Sequence[float] = settings.exit_at if audit is None else audit.exit_at
        self._audit = audit
        self._load = load
        self._audits = Background()
        self._combiner, self._gives_combined = combiner, combined
        self._quorum = asking.quorum or len(members)
        self._has_quorum = partial(has_quorum, self._asked, self._quorum)
        self._patience_ms = asking.patience_ms

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Probabilities | Ballots]:
        """Pixels by preprocessing to probabilities of those that were asked: combined, float32 [N,C], or by name."""
        return await joined(self.parts(batch))

    async def parts(self, batch: Batch[PixelSets]) -> AsyncIterator[Part]:
        """The same, stage by stage: an early exit does not wait for the images that go on."""
        async for part in self._run(batch):
            yield part.positions, part.combined if self._gives_combined else part.ballots

    async def _run(self, batch: Batch[PixelSets]) -> AsyncIterator[Ended]:
        positions: Sequence[int] = range(len(batch.items))
        outcomes: dict[str, Outcome] = {}
        names: tuple[str, ...] = ()
        exit_at, full = self._thresholds(batch)
        for number, member in enumerate(self._asked):
            is_last = number == len(self._asked) - 1
            is_asked, outcomes[member.name] = await self._ask(member, batch, len(self._asked) - number)
            names = (*names, member.name) if is_asked else names
            # An image may still fail on as many members as the quorum can do without.
            ballots = collect(batch, outcomes, len(outcomes) - (len(self._asked) - self._quorum))
            heard = ballots.live if is_last else _judged(ballots, len(outcomes), full)
            combined = await self._combined(ballots, heard)
            sure = heard if is_last else _sure(exit_at[number], heard, combined)
            staying = [] if is_last else sorted(set(ballots.live) - set(sure))
            leaving = [i for i in range(len(positions)) if i not in set(staying)]
            eased: set[int] = set()
            if not is_last and exit_at[number] < self._exit_at[number]:
                eased = set(sure) - set(_sure(self._exit_at[number], heard, combined))
            if self._audit is not None and not is_last:
                self._look_again(self._audit, number, batch, outcomes, heard, combined)
            if leaving:
                yield _ended(positions, leaving, ballots, heard, combined, names, eased)
            if not staying:
                break
            if leaving:
                positions = [positions[i] for i in staying]
                batch = batch.split(staying)
                full = [full[i] for i in staying]
                outcomes = {n: o.split(staying) if isinstance(o, Batch) else o for n, o in outcomes.items()}

    def _thresholds(self, batch: Batch[PixelSets]) -> tuple[Sequence[float], list[bool]]:
        """The thresholds in force, and which images are asked of every member."""
        if self._load is None:
            return self._exit_at, [item.options.quality == "full" for item in batch.items]
        self._load.see(batch)
        # An audit may have raised the usual ones meanwhile.
        return (
            self._load.exit_at if self._load.is_on else self._exit_at,
            [self._load.grants(item) for item in batch.items],
        )

    async def _ask(self, member: Asked, batch: Batch[PixelSets], turns: int) -> tuple[bool, Outcome]:
        """Whether a member was asked, and what came of it."""
        waits = self._quorum < len(self._asked)
        patience = patience_s(batch, self._patience_ms, turns) if waits else None
        # Who is late is not waited for again, unless the others are too few.
        if member.is_late and self._has_quorum():
            member.try_again(batch, patience)
            return False, member.outcome(None, None)
        call = member.ask(batch, self._has_quorum if waits else None)
        try:
            await asyncio.wait([call], timeout=patience)
        except asyncio.CancelledError:
            call.cancel()
            raise
        return True, member.outcome(call, patience)

    def _look_again(
        self,
        audit: Audit,
        number: int,
        batch: Batch[PixelSets],
        outcomes: Mapping[str, Outcome],
        heard: Sequence[int],
        combined: Batch[Probabilities],
    ) -> None:
        """Give some of the exits to the members that were not asked, in the background, if none are there already."""
        sure = combined.payload.max(axis=1, initial=0.0)
        left = {heard[i]: row for row, i in enumerate(combined.live) if sure[row] >= self._exit_at[number]}
        drawn = audit.draw(list(left))
        if not drawn:
            return
        is_loaded = self._load is not None and self._load.is_on
        if self._audits.is_busy or is_loaded or any(member.is_late for member in self._asked):
            audit.drop(number, len(drawn))
            return
        part = unhurried(batch.split(drawn))
        said = {name: outcome.split(drawn) for name, outcome in outcomes.items() if isinstance(outcome, Batch)}
        exits = [(float(sure[left[image]]), int(combined.payload[left[image]].argmax())) for image in drawn]
        self._audits.start(self._audited(audit, number, part, said, exits))

    async def _audited(
        self,
        audit: Audit,
        number: int,
        batch: Batch[PixelSets],
        outcomes: Mapping[str, Outcome],
        exits: Sequence[tuple[float, int]],
    ) -> None:
        try:
            async with asyncio.timeout((self._patience_ms or PATIENCE_MS) / 1000):
                said = dict(outcomes)
                for member in self._asked[number + 1 :]:
                    said[member.name] = await member.ask(batch)
                answer = await self._combiner(collect(batch, said, len(self._asked)))
        except Exception as err:
            # A member that fails is the cascade's to tell of when it needs it.
            logger.info("an audit of %d exits came to nothing: %r", len(exits), err)
            audit.drop(number, len(exits))
            return
        row_of = {position: row for row, position in enumerate(answer.live)}
        for position, (sure, exit_) in enumerate(exits):
            if position in row_of:
                audit.note(number, sure, int(answer.payload[row_of[position]].argmax()) != exit_)
            else:
                audit.drop(number, 1)

    async def _combined(self, ballots: Batch[Ballots], heard: Sequence[int]) -> Batch[Probabilities]:
        """What was said of some of the images, combined."""
        if not heard:
            return Batch(np.empty((0, 0), np.float32), ())
        return await self._combiner(ballots if len(heard) == len(ballots.items) else ballots.split(heard))


def _sure(exit_at: float, heard: Sequence[int], combined: Batch[Probabilities]) -> list[int]:
    """Which of the images are answered by a threshold, or have failed."""
    row_of = {position: row for row, position in enumerate(combined.live)}
    reached = combined.payload.max(axis=1, initial=0.0) >= exit_at
    return [image for i, image in enumerate(heard) if i not in row_of or reached[row_of[i]]]


def _judged(ballots: Batch[Ballots], asked: int, full: Sequence[bool]) -> list[int]:
    """The images that a member has answered and that may be answered without the others."""
    return [
        position for position in ballots.live if len(ballots.items[position].missing) < asked and not full[position]
    ]


def _ended(
    positions: Sequence[int],
    leaving: Sequence[int],
    ballots: Batch[Ballots],
    heard: Sequence[int],
    combined: Batch[Probabilities],
    names: tuple[str, ...],
    eased: Container[int],
) -> Ended:
    """Those that leave, of which only what was `heard` is combined; the others have failed."""
    place = {image: i for i, image in enumerate(heard)}
    well = [image for image in leaving if image in place]
    lost = [image for image in leaving if image not in place]
    kept = combined if len(well) == len(heard) else combined.split([place[image] for image in well])
    pairs = zip(well, kept.items, strict=True)
    told = Batch(kept.payload, tuple(replace(item, asked=names, eased=image in eased) for image, item in pairs))
    said = ballots.split([*well, *lost])
    items = (*told.items, *said.items[len(well) :])
    return Ended(
        [positions[image] for image in (*well, *lost)], Batch(_rows(said, told), items), Batch(told.payload, items)
    )


def _rows(said: Batch[Ballots], told: Batch[Probabilities]) -> Ballots:
    """The ballots of the images that the combiner has not failed."""
    if len(told.live) == len(said.live):
        return said.payload
    return {name: scores[told.live] for name, scores in said.payload.items()}

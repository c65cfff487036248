"""A member of two versions: a share of the images goes to the other one, and back where that has no answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.payload import Images, Probabilities
from deployments.contract.rollout import SUFFIX
from graph.capabilities.canary.trial import Trial
from graph.flows.background import Background
from graph.flows.patience import patience_s

logger = logging.getLogger("ray.serve")

# Of the time that the member may take: the rest is for the stable version, where this one has no answer.
PATIENT_SHARE = 0.5
# Where nothing else bounds it.
PATIENCE_S = 10.0

Asked = Node[Images, Probabilities]
Call = asyncio.Future[Batch[Probabilities]]
# Images by their positions in a batch, and the answer to them.
Part = tuple[Sequence[int], Batch[Probabilities]]


class Canary:
    """Asks both versions side by side, each for its own images; to the rest of the graph it is the member."""

    def __init__(
        self, stable: Asked, canary: Asked, trial: Trial, patience_ms: int | None = None, turns: int = 1
    ) -> None:
        """Set both versions.

        Args:
            stable: answers what the other does not.
            canary: answers the images in whose `trials` the member is.
            trial: notes how it fares.
            patience_ms: how long the member may take, if something says so.
            turns: the members that are asked one after the other.
        """
        self._stable, self._canary, self._trial = stable, canary, trial
        self._patience_ms, self._turns = patience_ms, turns
        self._watched = Background()

    async def __call__(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """What a member takes to float32 [N,C]; the items say which version has answered."""
        mine = [position for position in batch.live if self._trial.name in batch.items[position].trials]
        if not mine:
            return await self._ask_stable(batch)
        tried = asyncio.ensure_future(self._try(batch.split(mine)))
        chosen = set(mine)
        rest = [position for position in range(len(batch.items)) if position not in chosen]
        try:
            parts: list[Part] = [(rest, await self._ask_stable(batch.split(rest)))] if rest else []
            return Batch.join([*parts, (mine, await tried)])
        finally:
            # It is over, unless the other version has raised or nobody waits any more.
            tried.cancel()

    async def _ask_stable(self, batch: Batch[Images]) -> Batch[Probabilities]:
        live = len(batch.live)
        if not live:
            return Batch(np.empty((0, 0), np.float32), batch.items)
        began = time.perf_counter()
        answer = await self._stable(batch)
        self._trial.note("stable", [False] * live, time.perf_counter() - began)
        return answer

    async def _try(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """The canary's answer; of images that it has none of, the stable version's."""
        began = time.perf_counter()
        fair_s = self._fair_s()
        left_s = patience_s(batch, None, self._turns)
        waited_s = fair_s if left_s is None else min(fair_s, PATIENT_SHARE * left_s)
        call = asyncio.ensure_future(_call(self._canary, batch))
        try:
            await asyncio.wait([call], timeout=waited_s)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not call.done() and waited_s < fair_s:
            return await self._leave(batch, call, began, fair_s - waited_s)
        answer = self._answer(call, len(batch.items))
        seconds = time.perf_counter() - began
        well = [] if answer is None else answer.live
        left = sorted(set(range(len(batch.items))) - set(well))
        parts: list[Part] = []
        if answer is not None and well:
            parts.append((well, self._renamed(answer.split(well))))
        failed = [False] * len(batch.items)
        if left:
            again = batch.split(left)
            if answer is not None:
                again = Batch(again.payload, _with_steps(again, answer.split(left)))
            second = await self._stable(again)
            parts.append((left, _untried(second, self._trial.name)))
            for place, item in zip(left, second.items, strict=True):
                # What neither can answer speaks against the image.
                failed[place] = item.error is None
        self._trial.note("canary", failed, seconds)
        return Batch.join(parts)

    def _fair_s(self) -> float:
        """How long the canary must have had before it has failed, seconds, whatever the deadlines of its images."""
        may_take = PATIENCE_S if self._patience_ms is None else PATIENT_SHARE * self._patience_ms / 1000
        known = self._trial.patience_s
        return may_take if known is None else min(may_take, known)

    def _answer(self, call: Call, images: int) -> Batch[Probabilities] | None:
        """What a call has brought; None if it failed, or has not ended, which ends it."""
        error: BaseException = TimeoutError("it took too long")
        try:
            if call.done():
                return call.result()
        except (asyncio.CancelledError, Exception) as err:
            error = err
        call.cancel()
        name = self._trial.name
        logger.warning("the canary of member %r has no answer to %d images: %r", name, images, error)
        return None

    async def _leave(self, batch: Batch[Images], call: Call, began: float, left_s: float) -> Batch[Probabilities]:
        """The stable version's answer to images whose deadlines are too short to wait for the canary's fair time."""
        stable = asyncio.ensure_future(_call(self._stable, batch))
        if self._watched.is_busy:
            call.cancel()
        else:
            self._watched.start(self._watch(call, stable, began, left_s))
        return _untried(await stable, self._trial.name)

    async def _watch(self, call: Call, stable: Call, began: float, left_s: float) -> None:
        """Note what comes of a call of the canary that nobody waits for."""
        await asyncio.wait([call], timeout=left_s)
        seconds = time.perf_counter() - began
        await asyncio.wait([stable])
        if stable.cancelled() or stable.exception() is not None:
            call.cancel()
            return
        live = stable.result().live
        answer = self._answer(call, len(live))
        # Images whose own deadline passed before the canary began with them say nothing of it.
        judged = [i for i in live if answer is None or not isinstance(answer.items[i].error, DeadlineExceeded)]
        if judged:
            failed = [answer is None or answer.items[i].error is not None for i in judged]
            self._trial.note("canary", failed, seconds)

    def _renamed(self, batch: Batch[Probabilities]) -> Batch[Probabilities]:
        """The answer as the member's."""
        name = self._trial.name
        return Batch(
            batch.payload,
            tuple(
                replace(
                    item,
                    versions={
                        name if each == f"{name}{SUFFIX}" else each: version for each, version in item.versions.items()
                    },
                )
                for item in batch.items
            ),
        )


async def _call(version: Asked, batch: Batch[Images]) -> Batch[Probabilities]:
    return await version(batch)


def _with_steps(batch: Batch[Images], answer: Batch[Probabilities]) -> tuple[Item, ...]:
    """The images with what has been noted of them meanwhile."""
    return tuple(replace(item, steps=then.steps) for item, then in zip(batch.items, answer.items, strict=True))


def _untried(batch: Batch[Probabilities], name: str) -> Batch[Probabilities]:
    """The images as no longer tried: the stable version has answered."""
    items = (replace(item, trials=tuple(each for each in item.trials if each != name)) for item in batch.items)
    return Batch(batch.payload, tuple(items))

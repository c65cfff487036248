"""A member of two versions: the canary answers a share of the images, and the stable version all others.

Both are asked in the background about the same images, to compare their time and their answers.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from deployments.contract.batch import NO_SCORES, Batch
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.payload import Images, Probabilities
from deployments.pipeline.member_client import patience_s
from ensemble_features.background import Background, unhurried
from ensemble_features.canary.settings import SUFFIX
from ensemble_features.canary.trial import Role, Trial
from ensemble_features.record import Copied, Copy, Record, Trials

logger = logging.getLogger("ray.serve")

# The canary's share of the time that the member may take; the stable version has the rest where the canary fails.
PATIENT_SHARE = 0.5
# Seconds that the canary may take where the configuration sets no patience.
PATIENCE_S = 10.0

# So many images of the canary are compared at once; of those after them a part, because each costs two inferences more.
AT_FIRST, LATER = 1000, 0.1

Model = Node[Images, Probabilities]
# Images by their positions in a batch, and the answer to them.
Part = tuple[Sequence[int], Batch[Probabilities]]
# The canary's answer, None if it failed, and how long it took, seconds.
Tried = tuple[Batch[Probabilities] | None, float]


class Canary:
    """Asks both versions side by side, each for its own images; to the rest of the graph it is the member."""

    def __init__(
        self, stable: Model, canary: Model, trial: Trial, patience_ms: int | None = None, turns: int = 1
    ) -> None:
        """Set both versions, how long the member may take (None for open), and how many members are asked in turn."""
        self._stable, self._canary, self._trial = stable, canary, trial
        self._patience_ms, self._turns = patience_ms, turns
        self._watched = Background()

    async def __call__(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """Turn the member's inputs into float32 [N,C]; the items say which version has answered."""
        mine = [position for position in batch.live if self._trial.name in Trials.of(batch.items[position])]
        if not mine:
            return await self._ask_stable(batch)
        tried = asyncio.ensure_future(self._ask_canary(batch.split(mine)))
        rest = sorted(set(range(len(batch.items))) - set(mine))
        try:
            parts: list[Part] = [(rest, await self._ask_stable(batch.split(rest)))] if rest else []
            return Batch.join([*parts, (mine, await tried)])
        finally:
            # It still runs if the stable version has raised, or if the batch was cancelled.
            tried.cancel()

    async def _ask_stable(self, batch: Batch[Images]) -> Batch[Probabilities]:
        live = len(batch.live)
        if not live:
            return Batch(NO_SCORES, batch.items)
        began = time.perf_counter()
        answer = await self._stable(batch)
        seconds = time.perf_counter() - began
        self._trial.note("stable", batch.items, [False] * live, seconds)
        return answer

    async def _ask_canary(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """Ask the canary; images that it does not answer in time get the stable version's answer."""
        left_s, parts = patience_s(batch, None, self._turns), list[Part]()
        trying = asyncio.ensure_future(self._try(batch))
        try:
            await asyncio.wait([trying], timeout=None if left_s is None else PATIENT_SHARE * left_s)
            answer = trying.result()[0] if trying.done() else None
            if answer is not None and (well := answer.live):
                parts.append((well, self._renamed(answer.split(well))))
            left = sorted(set(range(len(batch.items))).difference(*(positions for positions, _ in parts)))
            again = batch.split(left)
            if answer is not None:
                noted = zip(again.items, answer.split(left).items, strict=True)
                again = Batch(again.payload, tuple(replace(item, steps=then.steps) for item, then in noted))
            if left:
                parts.append((left, self._untried(await self._stable(again))))
        except BaseException:
            trying.cancel()
            raise
        joined = Batch.join(parts)
        if trying.done():
            self._note(joined, *trying.result())
        elif self._watched.is_busy:
            trying.cancel()
        else:
            self._watched.start(self._note_later(joined, trying))
        return joined

    async def _try(self, batch: Batch[Images]) -> Tried:
        """Ask the canary, which has its fair time, however little its images have left."""
        began, answer = time.perf_counter(), None
        try:
            async with asyncio.timeout(self._fair_s(len(batch.items))):
                answer = await self._canary(unhurried(batch))
        except (asyncio.CancelledError, Exception) as err:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            name = self._trial.name
            logger.warning("the canary of member %r did not answer %d images: %r", name, len(batch.items), err)
        return answer, time.perf_counter() - began

    def _fair_s(self, images: int) -> float:
        may_take = PATIENCE_S if self._patience_ms is None else PATIENT_SHARE * self._patience_ms / 1000
        return min(may_take, self._trial.patience_s(images) or may_take)

    def _note(self, joined: Batch[Probabilities], answer: Batch[Probabilities] | None, seconds: float) -> None:
        """Note the canary's answer; an image that neither version has answered does not speak against it."""
        failed = [
            item.error is None and (answer is None or answer.items[position].error is not None)
            for position, item in enumerate(joined.items)
        ]
        self._trial.note("canary", joined.items, failed, seconds)

    async def _note_later(self, joined: Batch[Probabilities], trying: asyncio.Task[Tried]) -> None:
        """Note the answer of a canary that has time left, though its images have none."""
        self._note(joined, *await trying)

    def _renamed(self, batch: Batch[Probabilities]) -> Batch[Probabilities]:
        names = {f"{self._trial.name}{SUFFIX}": self._trial.name}
        versions = ({names.get(name, name): v for name, v in item.versions.items()} for item in batch.items)
        pairs = zip(batch.items, versions, strict=True)
        return Batch(batch.payload, tuple(replace(item, versions=version) for item, version in pairs))

    def _untried(self, batch: Batch[Probabilities]) -> Batch[Probabilities]:
        """Remove the trial from images that the stable version has answered."""
        name = self._trial.name
        left = (Trials(tuple(each for each in Trials.of(item) if each != name)) for item in batch.items)
        return Batch(batch.payload, tuple(item.with_note(note) for item, note in zip(batch.items, left, strict=True)))


class Comparison(Copied):
    """Draws images that the canary answers, and asks both versions about them: the same images, one after the other."""

    def __init__(self, trial: Trial, versions: Mapping[Role, Model], pixels: str, seed: int | None = None) -> None:
        """Set the trial, the nodes of both versions, and the key of the pixels that they take."""
        super().__init__(pixels, seed)
        self._trial, self._versions = trial, versions

    def draw(self, items: Sequence[Item]) -> list[int]:
        """Draw the images to compare, by position: all that the canary answers, or none."""
        is_spared = self._trial.compared >= AT_FIRST and self._random.random() >= LATER
        if is_spared or self._work.is_busy:
            return []
        return [position for position, item in enumerate(items) if self._trial.name in Trials.of(item)]

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about the images that the canary has answered; returns at once."""
        super().ask([copy for copy in copies if self._trial.name in copy[1].trials], patience_ms)

    async def compare(self, images: Batch[Images], records: Sequence[Record], patience_s: float) -> None:
        """See `Copied`."""
        seconds: dict[Role, float] = {}
        predicted: dict[Role, dict[int, int]] = {}
        # In any order, so that a burst of load falls on either.
        roles: list[Role] = self._random.sample(get_args(Role), 2)
        try:
            for role in roles:
                seconds[role], predicted[role] = await self._predicted(role, images, patience_s)
        except Exception as err:
            # A canary that fails is found by the images that it fails on.
            logger.info("the versions of member %r were not compared: %r", self._trial.name, err)
            return
        if predicted["stable"]:
            self._trial.took(images.items, seconds["canary"], seconds["stable"])
        for place, (pixels, item, record) in enumerate(zip(images.payload, images.items, records, strict=True)):
            if place in predicted["canary"] and place in predicted["stable"]:
                both = predicted["canary"][place], predicted["stable"][place]
                self._trial.answered(item.caller, item.request, bytes(pixels), both, record)
        self._trial.judge()

    async def _predicted(self, role: Role, images: Batch[Images], patience_s: float) -> tuple[float, dict[int, int]]:
        """Ask a version; return the seconds it takes, at most its patience, and its class of each image it answers."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(patience_s) as limit:
                answer = await self._versions[role](images)
        except TimeoutError:
            if not limit.expired():
                raise
            return patience_s, {}
        seconds = time.perf_counter() - began
        return seconds, dict(zip(answer.live, answer.payload.argmax(axis=1).tolist(), strict=True))

"""Both versions of a member, asked in the background about the same images, to compare their time and their answers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import get_args

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.contract.payload import Images, Probabilities
from ensemble_rollout.canary.trial import Role, Trial
from ensemble_rollout.record import Copy, Trials
from graph.pipeline.background import PATIENCE_MS, Background, unhurried

logger = logging.getLogger("ray.serve")

# So many images of the canary are compared at once; of those after them a part, because each costs two inferences more.
AT_FIRST, LATER = 1000, 0.1


class Comparison:
    """Draws images that the canary answers, and asks both versions about them: the same images, one after the other."""

    def __init__(
        self, trial: Trial, versions: Mapping[Role, Node[Images, Probabilities]], pixels: str, seed: int | None = None
    ) -> None:
        """Set the trial, the nodes of both versions, and the key of the pixels that they take."""
        self._trial, self._versions, self._pixels = trial, versions, pixels
        self._random = random.Random(seed)
        self._work = Background()

    def draw(self, items: Sequence[Item]) -> list[int]:
        """Draw the images to compare, by position: all that the canary answers, or none."""
        is_spared = self._trial.compared >= AT_FIRST and self._random.random() >= LATER
        if is_spared or self._work.is_busy:
            return []
        return [position for position, item in enumerate(items) if self._trial.name in Trials.of(item)]

    def ask(self, copies: Sequence[Copy], patience_ms: int | None) -> None:
        """Ask about the images that the canary has answered; returns at once."""
        answered = [copy for copy in copies if self._trial.name in copy[1].trials]
        if answered and not self._work.is_busy:
            self._work.start(self._ask(answered, (patience_ms or PATIENCE_MS) / 1000))

    async def _ask(self, copies: Sequence[Copy], patience_s: float) -> None:
        sent = Batch.join([([place], part) for place, (part, _) in enumerate(copies)])
        images = unhurried(Batch(sent.payload[self._pixels], sent.items))
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
        for place, (part, record) in enumerate(copies):
            if place in predicted["canary"] and place in predicted["stable"]:
                pixels = bytes(part.payload[self._pixels][0])
                both = predicted["canary"][place], predicted["stable"][place]
                self._trial.answered(part.items[0].caller, part.items[0].request, pixels, both, record)
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

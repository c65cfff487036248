"""The CPU time that models take for an image on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.members.predictor import Predictor
from deployments.repository.repository import Model
from ensemble_models.described import image_size

BATCH, ROUNDS = 8, 15
# The ranks, of 15 sorted values, between which the median of all lies at 95 % (binomial distribution).
LOW, HIGH = 3, 11


@dataclass(frozen=True)
class Cost:
    """CPU time per image, milliseconds: the median of several batches, with its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ms of CPU time per image ({self.low:.2f} to {self.high:.2f})"


def costs(models: Sequence[Model]) -> list[Cost]:
    """Measure the CPU time per image of models, each with one thread and in batches of 8.

    The models take turns, so that whatever else the machine does slows all of them alike.
    """
    return asyncio.run(_costs(models))


async def _costs(models: Sequence[Model]) -> list[Cost]:
    random, members = np.random.default_rng(0), []
    for model in models:
        size = image_size(model)
        pixels = random.integers(0, 256, (BATCH, *size, 3), np.uint8)
        members.append((Predictor(OpenVino(name=model.name, threads=1), model, size, BATCH), pixels))
    took = np.empty((1 + ROUNDS, len(members)))
    for turn in took:
        for number, (member, pixels) in enumerate(members):
            began = time.process_time()
            await member(Batch(pixels, (Item(),) * BATCH))
            turn[number] = time.process_time() - began
    # The first turn warms up.
    ordered = np.sort(took[1:], axis=0) * 1000 / BATCH
    return [Cost(*map(float, each)) for each in ordered[[ROUNDS // 2, LOW, HIGH]].T]

"""The CPU time that models take for an image on this machine, and which version of a member takes the least."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.members.predictor import Predictor
from deployments.repository.errors import ModelError
from deployments.repository.network import image_size, precision
from deployments.repository.repository import Folder, Model
from graph.config import EnsembleConfig
from scripts.doctor import Finding
from scripts.errors import ScriptError

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


def versions(config: EnsembleConfig) -> Iterator[Finding]:
    """Measure the served version of each member, and the highest of each other precision, in turns."""
    for member in config.members:
        if not isinstance(member, OpenVino):
            continue
        try:
            models = _candidates(member, config)
            if len(models) > 1:
                yield compare(member.name, models, costs(models))
        except (ModelError, ScriptError) as err:
            yield Finding("look", f"member {member.name}: {err}", "restore this version, or delete its folder")


def compare(name: str, models: Sequence[Model], measured: Sequence[Cost]) -> Finding:
    """Compare a member's served version, the first one, with the others.

    A float version that takes less time than a served int8 one is better in every respect, because int8 loses accuracy.
    """
    shown = [f"version {each.version} ({precision(each)}) {cost}" for each, cost in zip(models, measured, strict=True)]
    what = f"member {name}: {shown[0]}; {'; '.join(shown[1:])}"
    best = min(range(len(models)), key=lambda row: measured[row].median)
    if precision(models[0]) == "INT8" and measured[best].high < measured[0].low:
        return Finding("look", what, f"version {models[best].version} suits this CPU: set `version` of the member")
    return Finding("ok", what)


def _candidates(member: OpenVino, config: EnsembleConfig) -> list[Model]:
    """Find the served version, then the highest one of each other precision; only prepared ones on this disk."""
    repository, name = member.repository_and_name(config.model_repository)
    served = member.find(config.model_repository)
    if not isinstance(repository, Folder) or not served.metadata:
        return [served]
    every = [repository.find(name, version) for version in repository.versions(name)]
    found = {precision(each): each for each in every if each.metadata} | {precision(served): served}
    return [served, *(each for each in found.values() if each is not served)]

"""What a model takes and costs: the size of its images, its precision, and its CPU time on this machine."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.members.predictor import Predictor
from deployments.repository.errors import ModelError
from deployments.repository.network import input_size, load, read
from deployments.repository.repository import Model

PRECISIONS = ("FP32", "FP16", "INT8")


def image_size(model: Model) -> tuple[int, int]:
    """Return height and width of a model's images: the size that the network fixes, or else the metadata name.

    Raises:
        ModelError: neither names a size, or the model is damaged.
    """
    if (size := input_size(load(model))) is not None:
        return size
    height, width = model.input.get("height"), model.input.get("width")
    if not isinstance(height, int) or not isinstance(width, int):
        raise ModelError(f"model {model.name!r} fixes no input size; prepare it with --size")
    return height, width


def stored_precision(model: Model) -> str:
    """Return the precision of most of a model's stored weights: `FP32`, `FP16`, or `INT8` for 8 bits or fewer.

    Raises:
        ModelError: OpenVINO can't read the model.
    """
    bits: Counter[int] = Counter()
    for node in read(model).get_ordered_ops():
        if node.get_type_name() == "Constant":
            bits[node.get_output_element_type(0).bitwidth] += prod(node.get_output_shape(0))
    most = bits.most_common(1)[0][0] if bits else 32
    return "INT8" if most <= 8 else "FP16" if most == 16 else "FP32"


def precision(model: Model) -> str:
    """Return the precision in the metadata, `FP32`, `FP16` or `INT8`; else the precision of the stored weights."""
    described = model.metadata.get("precision")
    return described if described in PRECISIONS else stored_precision(model)


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

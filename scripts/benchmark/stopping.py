"""Sets a cascade's threshold so that a given share of a workload's photographs is answered by its first member."""

from __future__ import annotations

import asyncio

import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.members.openvino import OpenVino
from deployments.predictor import Predictor
from models.repository import Model
from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import decode_all, preprocessing


def threshold(model: Model, photographs: Dataset, share: float) -> float:
    """What the largest probability of so many photographs reaches; between two of them, so that no rounding matters.

    Raises:
        ScriptError: the photographs are too alike to this model to be told apart.
    """
    wanted = preprocessing(model)
    pixels = decode_all(photographs.names, [encoded for encoded, _ in photographs.read()], wanted)
    member = Predictor(OpenVino(name=model.name), model, wanted.size, len(pixels))
    answer = asyncio.run(member(Batch(pixels, (Item(),) * len(pixels))))
    sure = np.sort(answer.payload.max(axis=1))
    going_on = round(len(sure) * (1 - share))
    if not 0 < going_on < len(sure) or sure[going_on - 1] == sure[going_on]:
        raise ScriptError(f"no threshold stops {share} of these {len(sure)} photographs at {model.name!r}")
    return float((sure[going_on - 1] + sure[going_on]) / 2)

"""Top-1 accuracy on labelled images, decoded and predicted by the code that serves them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from tqdm import tqdm

from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.repository.repository import Model
from scripts.dataset import Dataset, decode, index_of_folders, label
from scripts.errors import ScriptError
from scripts.evaluate.candidates import Candidate, of_models

# The index of each image's class, int64 [N].
Truth = NDArray[np.int64]

# A batch of the server's own size, so that members on other servers take it.
AT_ONCE = 16


def predict(models: Sequence[Model], dataset: Dataset) -> list[Probabilities]:
    """Predict every image by every model of a repository; see `predictions`."""
    return predictions(of_models(models), dataset)


def predictions(candidates: Sequence[Candidate], dataset: Dataset) -> list[Probabilities]:
    """Predict every image by every candidate.

    Returns:
        One float32 [images,classes] for each candidate, rows in the order of the dataset.

    Raises:
        ScriptError: an image can't be decoded, or a candidate fails on one.
    """
    return asyncio.run(_predictions(candidates, dataset))


async def _predictions(candidates: Sequence[Candidate], dataset: Dataset) -> list[Probabilities]:
    parts: list[list[Probabilities]] = [[] for _ in candidates]
    with tqdm(total=len(dataset), desc="predict", unit="img", leave=False) as progress:
        for names, encoded in _chunks(dataset):
            made: dict[str, Any] = {AsSent().key: encoded}
            for candidate, outputs in zip(candidates, parts, strict=True):
                wanted = candidate.wanted
                if isinstance(wanted, Preprocessing) and wanted.key not in made:
                    made[wanted.key] = decode_all(names, encoded, wanted)
                answer = await candidate.node(Batch(made[wanted.key], (Item(),) * len(names)))
                if error := next((item.error for item in answer.items if item.error is not None), None):
                    raise ScriptError(f"{candidate.name!r}: {error}")
                outputs.append(answer.payload)
            progress.update(len(names))
    return [np.concatenate(outputs) for outputs in parts]


def decode_all(names: Sequence[str], encoded: Sequence[bytes], wanted: Preprocessing) -> Pixels:
    """Decode images to uint8 BGR [N,height,width,3]; see `scripts.dataset.decode`."""
    return np.stack([decode(*image, [wanted])[0] for image in zip(names, encoded, strict=True)])


def truth(dataset: Dataset, model: Model) -> Truth:
    """Find the class index of every image, int64 [N], by the model's labels.

    Raises:
        ScriptError: the model has no labels, or the dataset has classes that are none of them.
    """
    if model.labels is None:
        raise ScriptError(f"model {model.name!r} has no labels; prepare it with --labels")
    return indices(dataset, model.labels, f"model {model.name!r}")


def indices(dataset: Dataset, labels: Sequence[str], whose: str) -> Truth:
    """Find the class index of every image, int64 [N], by the labels of what is named; see `folder_name`.

    Raises:
        ScriptError: the dataset has classes that are none of the labels, or two labels have one folder.
    """
    index = index_of_folders(labels)
    if unknown := [each for each in dataset.classes if each not in index]:
        raise ScriptError(
            f"{dataset.path} has the class {unknown[0]!r}, which is none of the {len(index)} classes of {whose} "
            f"({', '.join(labels[:3])}, ...); use images of its own classes"
        )
    return np.array([index[label(name)] for name in dataset.names], np.int64)


def hits(probabilities: Probabilities, labels: Truth) -> NDArray[np.float64]:
    """Return, for each row, 1 if its most probable class is the right one, else 0."""
    right: NDArray[np.float64] = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    return right


def top1(probabilities: Probabilities, labels: Truth) -> float:
    """Compute the share of rows, in percent, whose most probable class is the right one."""
    return 100 * int(hits(probabilities, labels).sum()) / len(labels)


def sample(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """Draw at most `count` images at random, the same ones for the same seed."""
    if count >= len(dataset):
        return dataset
    return replace(dataset, names=tuple(sorted(random.Random(seed).sample(dataset.names, count))))


def without(dataset: Dataset, other: Dataset) -> Dataset:
    """Select the images that are not in `other`."""
    taken = set(other.names)
    return replace(dataset, names=tuple(name for name in dataset.names if name not in taken))


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Describe the dataset for `metadata.json`: its name, its part, and its SHA-256."""
    return {"data": dataset.path.name, "part": dataset.part, "sha256": dataset.sha256}


def computed_in() -> str:
    """Return the type in which OpenVINO computes float models on this CPU, `f32` or `bf16`; top-1 depends on it."""
    hint: ov.Type = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
    return str(hint.to_string())


def _chunks(dataset: Dataset) -> Iterator[tuple[list[str], list[bytes]]]:
    images = zip(dataset.names, dataset.read(), strict=True)
    while chunk := list(islice(images, AT_ONCE)):
        yield [name for name, _ in chunk], [encoded for _, (encoded, _) in chunk]

"""Knowledge distillation: a student learns the answers of a finished ensemble to the images that it is trained on.

Sources: Hinton et al. 2015 (arXiv:1503.02531); by relations, Huang et al. 2022 (arXiv:2205.10536); that the teachers
see the mixed images that the student sees is from Beyer et al. 2022 (arXiv:2106.05237).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from deployments.cpus import available_cpus
from deployments.repository.network import input_size, load
from deployments.repository.repository import find
from scripts.errors import ScriptError

# What the paper on relations gives both parts, beside the labels' 1.
RELATIONS = 2.0
AT_ONCE = 500
Loss = Callable[[Tensor, Tensor], Tensor]


class Teachers:
    """Models of a repository that answer together, by the mean of their probabilities.

    Attributes:
        size: height and width of the images that they take, pixels; None for any.
    """

    def __init__(self, repository: Path, names: Sequence[str], classes: Sequence[str]) -> None:
        """Load each model's highest version.

        Raises:
            ScriptError: a model has other classes, or takes images of another size than the others.
            ModelError: there is no such model, or it is damaged.
        """
        self._models = [find(repository, name) for name in names]
        for model in self._models:
            if model.labels != tuple(classes):
                raise ScriptError(f"the teacher {model.name!r} has other classes than the images: {model.labels}")
        sizes = {size for model in self._models if (size := input_size(load(model))) is not None}
        if len({edge for size in sizes for edge in size}) > 1:
            raise ScriptError(
                f"the teachers {', '.join(names)} take images of different sizes; name teachers of one size"
            )
        self.size = next((height for height, _ in sizes), None)
        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": available_cpus()}
        self._compiled = [ov.Core().compile_model(load(model), "CPU", options) for model in self._models]

    def provenance(self) -> list[dict[str, Any]]:
        """Name, version and SHA-256 of each, for the metadata of their student."""
        return [model.provenance() for model in self._models]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the mean of the teachers' probabilities, float [N,classes], for BGR images, uint8 [N,3,H,W]."""
        rows = images.permute(0, 2, 3, 1).split(AT_ONCE)
        answers = [
            np.mean([model(part.contiguous().numpy())[0] for model in self._compiled], axis=0)
            for part in tqdm(rows, "teachers", unit="batch", delay=1)
        ]
        return torch.from_numpy(np.concatenate(answers))


def distillation(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Compute the cross-entropy of the student's answers against the teachers', summed over the images.

    Args:
        logits: the student's, float [N,classes].
        probabilities: the teachers', float [N,classes].
    """
    return F.cross_entropy(logits, probabilities, reduction="sum")


def relations(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Compute DIST: how badly the student's answers correlate with the teachers', times the number of images.

    Pearson's correlation between the classes of each image, and between the images for each class; a student is free in
    the scale of its answers. With a teacher weight of 0.5 the shares are the paper's. Arguments as `distillation`.
    """
    given = F.softmax(logits, 1)
    between, within = _correlation(given, probabilities), _correlation(given.T, probabilities.T)
    return RELATIONS * len(logits) * (2 - between.mean() - within.mean())


def _correlation(left: Tensor, right: Tensor) -> Tensor:
    """Compute Pearson's correlation of each pair of rows."""
    return F.cosine_similarity(left - left.mean(1, keepdim=True), right - right.mean(1, keepdim=True))


LOSSES: dict[str, Loss] = {"hinton": distillation, "dist": relations}

"""Knowledge distillation: a student learns the answers of a finished ensemble to the images that it is trained on.

Source: Hinton et al. 2015 (arXiv:1503.02531); that the teachers see the very pixels that the student sees, cut and
mixed, is from Beyer et al. 2022 (arXiv:2106.05237).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
import torch.nn.functional as F
from torch import Tensor

from deployments.contract.payload import Pixels, Probabilities
from deployments.cpus import available_cpus
from models.network import input_size, load
from models.repository import Model, find, sha256
from scripts.errors import ScriptError

# What a probability of 0 becomes, so that its logarithm is finite.
SMALLEST = 1e-7


class Teachers:
    """Models of a repository that answer together, by the mean of their probabilities."""

    def __init__(self, repository: Path, names: Sequence[str], classes: Sequence[str], size: int) -> None:
        """Load each model's highest version.

        Raises:
            ScriptError: a model has other classes, or takes images of another size.
            ModelError: there is no such model, or it is damaged.
        """
        self._models = [find(repository, name) for name in names]
        for model in self._models:
            if model.labels != tuple(classes):
                raise ScriptError(f"the teacher {model.name!r} has other classes than the images: {model.labels}")
            if input_size(load(model)) not in {None, (size, size)}:
                raise ScriptError(f"the teacher {model.name!r} takes images of another size than {size}")
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": min(available_cpus(), torch.get_num_threads()),
        }
        self._compiled = [ov.Core().compile_model(load(model), "CPU", options) for model in self._models]

    def provenance(self) -> list[dict[str, Any]]:
        """Name, version and SHA-256 of each, for the metadata of their student."""
        return [_provenance(model) for model in self._models]

    def __call__(self, pixels: Tensor) -> Tensor:
        """The mean of the teachers' probabilities, float [N,classes].

        Args:
            pixels: BGR from 0 to 255, float [N,3,H,W], as the student sees them before they are normalized.
        """
        rows = pixels.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().cpu().numpy()
        return torch.from_numpy(self._ask(rows)).to(pixels.device)

    def _ask(self, rows: Pixels) -> Probabilities:
        answers: Probabilities = np.mean([model(rows)[0] for model in self._compiled], axis=0)
        return answers


def _provenance(model: Model) -> dict[str, Any]:
    return {"name": model.name, "version": model.version, "sha256": sha256(model.path.with_suffix(".bin"))}


def distillation(logits: Tensor, probabilities: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of the student's softened answers against the teachers', summed over the images.

    Args:
        logits: the student's, float [N,classes].
        probabilities: the teachers', float [N,classes].
        temperature: what logits and the logarithms of probabilities are divided by; the result is multiplied by its
            square, so that the gradient's size does not depend on it.
    """
    softened = F.softmax(probabilities.clamp(min=SMALLEST).log() / temperature, 1)
    return F.cross_entropy(logits / temperature, softened, reduction="sum") * temperature**2

"""Images that are mixed beforehand, so that teachers are asked about each of them once for all epochs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from deployments.contract.preprocessing import Preprocessing
from deployments.transformer import decoding
from lab.training.augmentation import mix
from lab.training.recipe import Recipe
from lab.training.teachers import Teachers
from scripts.errors import ScriptError

# Normalized images, float [n,3,H,W]; the classes' probabilities, float [n,classes]; and what teachers answer to these
# images, float [n,classes], None where they were not asked.
Lesson = tuple[Tensor, Tensor, Tensor | None]
# The same for every run, whatever its own seed, so that runs share the teachers' answers.
SEED = 0
AT_ONCE = 500


class Mixtures:
    """The images as they are, and all of them mixed in several ways; their classes, and the teachers' answers."""

    def __init__(
        self,
        raw: Tensor,
        labels: Tensor,
        classes: int,
        recipe: Recipe,
        teachers: Teachers | None,
        outputs: Path | None = None,
        size: int | None = None,
    ) -> None:
        """Mix images, uint8 [N,3,H,W], of classes int64 [N], and ask the teachers about all; see `answers`.

        Then all are resized to `size`, if it is given.
        """
        plain = F.one_hot(labels, classes).float()
        ways = [(raw, plain)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            ways += [_mixed(raw, plain, recipe) for _ in range(recipe.mixtures)]
        self._probability = recipe.mix_probability
        self._images = torch.stack([images for images, _ in ways])
        self._targets = torch.stack([targets for _, targets in ways])
        self._taught = None if teachers is None else answers(self._images, teachers, outputs)
        if size is not None:
            self._images = torch.stack([resized(images, size) for images in self._images])

    def draw(self, rows: Tensor) -> Lesson:
        """Draw images, each as it is or mixed in one of the ways.

        Args:
            rows: which, int64 [n].

        Returns:
            As `Lesson`, but that the images are pixels, uint8.
        """
        mixed = torch.rand(len(rows)) < self._probability
        ways = torch.randint(1, len(self._images), (len(rows),)) * mixed
        taught = None if self._taught is None else self._taught[ways, rows]
        return self._images[ways, rows], self._targets[ways, rows], taught


def _mixed(raw: Tensor, targets: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    images, mixed = torch.empty_like(raw), torch.empty_like(targets)
    every = replace(recipe, mix_probability=1.0)
    # Shuffled, because the images are sorted by class, and each is mixed with one of its part.
    for rows in torch.randperm(len(raw)).split(AT_ONCE):
        some, mixed[rows] = mix(raw[rows].float(), targets[rows], every)
        images[rows] = some.round().byte()
    return images, mixed


def resized(images: Tensor, size: int) -> Tensor:
    """Resize images, uint8 [N,3,H,W], to size x size as the server does."""
    if images.shape[2:] == (size, size):
        return images
    wanted = Preprocessing((size, size))
    made = [decoding.resize(image, wanted) for image in images.permute(0, 2, 3, 1).contiguous().numpy()]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def answers(images: Tensor, teachers: Teachers, file: Path | None) -> Tensor:
    """Return the teachers' answers to images, uint8 [K,N,3,H,W]: float [K,N,classes].

    Args:
        images: the mixtures.
        teachers: are asked unless the file has the answers.
        file: `.npz`, which keeps them for other runs; None for none.

    Raises:
        ScriptError: the file is of other teachers or images, or holds something else.
    """
    key = hashlib.sha256(json.dumps(teachers.provenance()).encode() + images.contiguous().numpy().tobytes()).hexdigest()
    if file is not None and file.exists():
        try:
            with np.load(file) as saved:
                kept, of = torch.from_numpy(saved["answers"]), str(saved["key"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as err:
            raise ScriptError(f"{file} holds no teachers' answers: {err!r}; name another by --teacher-outputs") from err
        if of != key:
            raise ScriptError(f"{file} is of other teachers or images; name another by --teacher-outputs")
        return kept
    parts = images.flatten(0, 1).split(AT_ONCE)
    asked = torch.cat([teachers(part.float()) for part in tqdm(parts, "teachers", unit="batch", delay=1)])
    result = asked.view(*images.shape[:2], -1)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.partial.npz")
        np.savez(partial, key=key, answers=result.numpy())
        partial.replace(file)
    return result

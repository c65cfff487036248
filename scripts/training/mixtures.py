"""Images that are mixed beforehand, so that teachers are asked about each of them once for all epochs."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from scripts.training.batches import Lesson
from scripts.training.images import mix
from scripts.training.recipe import Recipe
from scripts.training.teachers import Teachers

# Alike for every run, whatever its own seed, so that runs share what the teachers have answered.
SEED = 0
AT_ONCE = 500


class Mixtures:
    """The images as they are, and all of them mixed in several ways; what their classes are, and what teachers say."""

    def __init__(self, raw: Tensor, labels: Tensor, classes: int, recipe: Recipe, teachers: Teachers | None) -> None:
        """Mix images, uint8 [N,3,H,W], of classes int64 [N], and ask the teachers about all."""
        plain = F.one_hot(labels, classes).float()
        ways = [(raw, plain)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            ways += [_mixed(raw, plain, recipe) for _ in range(recipe.mixtures)]
        self._probability = recipe.mix_probability
        self._images = torch.stack([images for images, _ in ways])
        self._targets = torch.stack([targets for _, targets in ways])
        self._taught = None if teachers is None else _answers(self._images, teachers)

    def draw(self, rows: Tensor) -> Lesson:
        """Some images, each as it is or mixed in one of the ways.

        Args:
            rows: which, int64 [n].

        Returns:
            As `batches.Lesson`, but that the images are pixels, uint8.
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


def _answers(images: Tensor, teachers: Teachers) -> Tensor:
    """What teachers answer to images, uint8 [K,N,3,H,W]: float [K,N,classes]."""
    parts = images.flatten(0, 1).split(AT_ONCE)
    answers = [teachers(part.float()) for part in tqdm(parts, "teachers", unit="batch", delay=1)]
    teachers.save()
    return torch.cat(answers).view(*images.shape[:2], -1)

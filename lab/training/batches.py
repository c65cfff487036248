"""Batches of an epoch: images shuffled, augmented and mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.training.images import augment, mix
from lab.training.recipe import Recipe

# Normalized images, float [n,3,H,W]; the classes' probabilities, float [n,classes]; and what teachers answer to these
# images, float [n,classes], None where they were not asked.
Lesson = tuple[Tensor, Tensor, Tensor | None]
# From numbers of images, int64 [n], to these.
Draw = Callable[[Tensor], Lesson]


def as_they_are(images: Tensor, labels: Tensor, classes: int) -> Draw:
    """Draws from normalized images, float [N,3,H,W], of classes int64 [N]."""
    return lambda rows: (images[rows], F.one_hot(labels[rows], classes).float(), None)


def batches(draw: Draw, count: int, recipe: Recipe, epoch: int) -> Iterator[Lesson]:
    """Each of `count` images once; each is mirrored in every other epoch (Jordan 2024, arXiv:2404.00498)."""
    mirrored = (torch.arange(count) * 2654435761 % 97 % 2 + epoch) % 2 == 1
    size = min(recipe.batch_size, count)
    for rows in torch.randperm(count).split(size):
        if len(rows) == size:
            batch, targets, taught = draw(rows)
            batch = torch.where(mirrored[rows].to(batch.device).view(-1, 1, 1, 1), batch.flip(3), batch)
            batch = augment(batch, recipe)
            if recipe.mix != "none" and not recipe.mixtures:
                batch, targets = mix(batch, targets, recipe)
            yield batch, targets, taught

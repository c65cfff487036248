"""How images are augmented, and mixed with each other."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.training.recipe import Recipe


def warp(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Zoom and translate each image about its centre with reflected borders; `shift` is in pixels, [N,2]."""
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = shift * 2 / images.shape[-1]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def box(images: Tensor, size: Tensor) -> Tensor:
    """Mark a square about a pixel chosen at random in each image, cut off at the borders: bool [N,1,H,W].

    Args:
        images: [N,C,H,W].
        size: of each square, whole pixels, int64 [N,1,1,1].
    """
    n, _, height, width = images.shape
    above = torch.arange(height, device=images.device).view(1, 1, -1, 1)
    left = torch.arange(width, device=images.device).view(1, 1, 1, -1)
    rows = above - torch.randint(height, (n, 1, 1, 1), device=images.device) + size // 2
    columns = left - torch.randint(width, (n, 1, 1, 1), device=images.device) + size // 2
    return (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)


def cutout(images: Tensor, size: int) -> Tensor:
    """Set one square of `size` pixels, anywhere in each image, to zero (DeVries and Taylor 2017)."""
    return images.masked_fill(box(images, torch.full((len(images), 1, 1, 1), size, device=images.device)), 0.0)


def augment(images: Tensor, recipe: Recipe) -> Tensor:
    """Shift images and cut squares out; with `zoom` also change zoom, contrast and brightness."""
    n = len(images)
    shift = torch.randint(-recipe.translate_px, recipe.translate_px + 1, (n, 2), device=images.device).float()
    if recipe.augmentation == "shift":
        return cutout(warp(images, torch.ones(n, device=images.device), shift), recipe.cutout_px)
    scale = 1 + recipe.zoom * (2 * torch.rand(n, device=images.device) - 1)
    gain = 1 + recipe.contrast * (2 * torch.rand(n, 1, 1, 1, device=images.device) - 1)
    offset = recipe.contrast * (2 * torch.rand(n, 1, 1, 1, device=images.device) - 1)
    return cutout(warp(images, scale, shift) * gain + offset, recipe.cutout_px)


def mix(images: Tensor, targets: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Put a part of another image of the batch into some of the images, and the same part of its class into theirs.

    The part is uniform in 0 to 1: with `cutmix` a box of that area, less what falls outside (Yun et al. 2019,
    arXiv:1905.04899), with `mixup` a share of every pixel (Zhang et al. 2017, arXiv:1710.09412).

    Args:
        images: float [N,C,H,W].
        targets: probabilities of the classes, float [N,classes].
        recipe: which of the two, and the fraction of the images that it is done to.
    """
    n = len(images)
    if recipe.mix == "either":
        halves = zip(images.tensor_split(2), targets.tensor_split(2), ("cutmix", "mixup"), strict=True)
        mixed = [mix(some, theirs, replace(recipe, mix=kind)) for some, theirs, kind in halves]
        return torch.cat([some for some, _ in mixed]), torch.cat([theirs for _, theirs in mixed])
    others = torch.randperm(n).to(images.device)
    part = torch.rand(n, 1, 1, 1, device=images.device)
    part = part * (torch.rand(n, 1, 1, 1, device=images.device) < recipe.mix_probability)
    if recipe.mix == "cutmix":
        taken = box(images, (part.sqrt() * images.shape[2]).round().long())
        part = taken.float().mean((2, 3), keepdim=True)
        result = torch.where(taken, images[others], images)
    else:
        result = torch.lerp(images, images[others], part)
    return result, torch.lerp(targets, targets[others], part.view(n, 1))

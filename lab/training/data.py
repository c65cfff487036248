"""Images for training: decoded, normalized, drawn, augmented and mixed as a recipe says.

Images are mixed in each batch, or all once beforehand: teachers are asked about each image and each mixture once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.repository import DEFAULT_ROOT
from deployments.transformer import resampling
from ensemble_models.dataset import Dataset, decode
from lab.training.recipe import Recipe
from lab.training.teachers import Teachers
from scripts.errors import ScriptError


def warp(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Zoom and translate each image about its centre with reflected borders; `shift` is in pixels, [N,2]."""
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = shift * 2 / images.shape[-1]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def box(images: Tensor, size: Tensor) -> Tensor:
    """Mark a square about a pixel chosen at random in each image, cut off at the borders: bool [N,1,H,W].

    The images are [N,C,H,W]; `size` is in whole pixels, int64 [N,1,1,1].
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
    """Shift and zoom images, change contrast and brightness, and cut squares out."""
    n = len(images)

    def around(middle: float, most: float) -> Tensor:
        return middle + most * (2 * torch.rand(n, 1, 1, 1, device=images.device) - 1)

    shift = torch.randint(-recipe.translate_px, recipe.translate_px + 1, (n, 2), device=images.device).float()
    warped = warp(images, around(1, recipe.zoom).view(n), shift)
    return cutout(warped * around(1, recipe.contrast) + around(0, recipe.contrast), recipe.cutout_px)


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


# Images, uint8 pixels or normalized, [n,3,H,W]; the classes' probabilities, float [n,classes]; and what teachers answer
# to these images, float [n,classes], None where they were not asked.
Lesson = tuple[Tensor, Tensor, Tensor | None]
# The same for every run, whatever its own seed, so that runs can share the images and the teachers' answers.
SEED = 0
AT_ONCE = 500


class Mixtures:
    """The images as they are, and all of them mixed in `mixtures` ways; their classes, and the teachers' answers."""

    def __init__(
        self,
        raw: Tensor,
        labels: Tensor,
        classes: int,
        recipe: Recipe,
        teachers: Teachers | None,
        size: int | None = None,
    ) -> None:
        """Mix images, uint8 [N,3,H,W], of classes int64 [N], and ask the teachers about all.

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
        self._taught = None if teachers is None else torch.stack([teachers(images) for images, _ in ways])
        if size is not None:
            self._images = torch.stack([resized(images, size) for images in self._images])

    def draw(self, rows: Tensor) -> Lesson:
        """Draw images by their numbers, int64 [n], each as it is or mixed: pixels, uint8."""
        ways = torch.zeros_like(rows)
        if (mixtures := len(self._images) - 1) > 0:
            mixed = torch.rand(len(rows)) < self._probability
            ways = torch.randint(1, mixtures + 1, (len(rows),)) * mixed
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
    made = [resampling.resize(image, wanted) for image in images.permute(0, 2, 3, 1).contiguous().numpy()]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def load_images(dataset: Dataset, size: int, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Decode a dataset as the server does; the centre is cut out of an image that is not square.

    Returns every image as uint8 [N,3,size,size] in BGR order, and its index in `classes` as int64 [N]. Raises
    ScriptError if a class is none of `classes`, or an image can't be decoded.
    """
    index = {name: i for i, name in enumerate(classes)}
    if unknown := [name for name in dataset.classes if name not in index]:
        raise ScriptError(f"{dataset.path} has the class {unknown[0]!r}, which is none of {', '.join(classes)}")
    images = np.empty((len(dataset), size, size, 3), np.uint8)
    labels = np.empty(len(dataset), np.int64)
    for i, (encoded, name) in enumerate(tqdm(dataset.read(), "decode", len(dataset), unit="img", delay=1)):
        [images[i]], labels[i] = decode(dataset.names[i], encoded, [Preprocessing((size, size))]), index[name]
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)


class Normalization:
    """Converts pixels to numbers whose channels have the mean 0 and the standard deviation 1."""

    def __init__(self, raw: Tensor, device: torch.device) -> None:
        """Take the statistics of images, uint8 [N,3,H,W]."""
        self.mean = raw.float().mean((0, 2, 3))
        self.std = raw.float().std((0, 2, 3))
        self._device = device
        self._columns = self.mean.view(1, 3, 1, 1).to(device), self.std.view(1, 3, 1, 1).to(device)

    def __call__(self, raw: Tensor) -> Tensor:
        """Normalize images, uint8 [N,3,H,W], to float [N,3,H,W] on the device."""
        mean, std = self._columns
        normal = (raw.to(self._device).float() - mean) / std
        return normal.contiguous(memory_format=torch.channels_last)


class TrainingData:
    """Images to learn, and images to judge by, which several runs can share.

    Attributes:
        begun: what a checkpoint records of them.
        device: that they are learnt on.
        teachers: whose answers are learnt; None without.
        pixels: the images to learn, as they are: uint8 [N,3,H,W].
        judged: normalized images and class indices to measure top-1 on after each epoch; None for none.
        normalize: from pixels.
    """

    pixels: Tensor
    judged: tuple[Tensor, Tensor] | None
    normalize: Normalization

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        judged: Dataset | None,
        size: int,
        repository: Path | None = None,
    ) -> None:
        """List the images and load the teachers; the images are decoded by `load`.

        Args:
            recipe: how images are mixed, which are held out, and by whom they are taught.
            data: the images to learn, a zip or folder of `<class>/*.jpg`.
            judged: such images to measure on; see `judging_images`.
            size: height and width, pixels.
            repository: where the teachers are; default: the bundled models.

        Raises:
            ScriptError: see `Teachers`.
            DatasetError: a path holds no labelled images.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._recipe, self._size = recipe, size
        self._dataset, _ = Dataset.open(data).hold_out(recipe.hold_out)
        self._judging, self.teachers = judged, None
        self._mixtures: Mixtures | None = None
        if recipe.teachers:
            self.teachers = Teachers(repository or DEFAULT_ROOT, recipe.teachers, self._dataset.classes)
        self.begun: dict[str, Any] = {
            "classes": list(self._dataset.classes),
            "size": size,
            "data_sha256": self._dataset.sha256,
            "teachers": [] if self.teachers is None else self.teachers.provenance(),
        }

    def load(self) -> None:
        """Decode the images, mix them and ask the teachers, if it has not been done.

        Raises ScriptError: see `load_images` and `Mixtures`.
        """
        if self._mixtures is not None:
            return
        classes = self._dataset.classes
        # The smaller first, so that a class that isn't the model's is reported at once.
        held = None if self._judging is None else load_images(self._judging, self._size, classes)
        self.pixels, labels = load_images(self._dataset, self._size, classes)
        self.normalize = Normalization(self.pixels, self.device)
        self.judged = None if held is None else (self.normalize(held[0]), held[1].to(self.device))
        given = self.pixels
        # Teachers are asked about images of their own size.
        if self.teachers is not None and self.teachers.size not in {None, self._size}:
            given, _ = load_images(self._dataset, self.teachers.size, classes)
        self._mixtures = Mixtures(given, labels, len(classes), self._recipe, self.teachers, self._size)

    def draw(self, rows: Tensor) -> Lesson:
        """Draw images by their numbers, int64 [n], normalized on the device."""
        assert self._mixtures is not None
        pixels, targets, taught = self._mixtures.draw(rows)
        return self.normalize(pixels), targets.to(self.device), None if taught is None else taught.to(self.device)

    def batches(self, epoch: int) -> Iterator[Lesson]:
        """Yield each image once, mirrored in every other epoch (Jordan 2024, arXiv:2404.00498)."""
        count = len(self.pixels)
        mirrored = (torch.arange(count) * 2654435761 % 97 % 2 + epoch) % 2 == 1
        size = min(self._recipe.batch_size, count)
        for rows in torch.randperm(count).split(size):
            if len(rows) == size:
                batch, targets, taught = self.draw(rows)
                batch = torch.where(mirrored[rows].to(batch.device).view(-1, 1, 1, 1), batch.flip(3), batch)
                batch = augment(batch, self._recipe)
                if self._recipe.mix != "none" and not self._recipe.mixtures:
                    batch, targets = mix(batch, targets, self._recipe)
                yield batch, targets, taught


def judging_images(recipe: Recipe, data: Path, validation: Path | None) -> Dataset | None:
    """Return the images that judge a run: `validation`, else the images that the run holds out, if any."""
    return Dataset.open(data).hold_out(recipe.hold_out)[1] if validation is None else Dataset.open(validation)

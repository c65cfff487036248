"""Images for training: decoded, normalized, drawn and augmented as a recipe says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_models.dataset import Dataset, decode
from lab.training.mixtures import Lesson, Mixtures, augment, mix
from lab.training.recipe import Recipe
from lab.training.teachers import Teachers
from scripts.errors import ScriptError

# From numbers of images, int64 [n], to the images.
Draw = Callable[[Tensor], Lesson]


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


def as_they_are(images: Tensor, labels: Tensor, classes: int) -> Draw:
    """Draw from normalized images, float [N,3,H,W], of classes int64 [N]."""
    return lambda rows: (images[rows], F.one_hot(labels[rows], classes).float(), None)


def batches(draw: Draw, count: int, recipe: Recipe, epoch: int) -> Iterator[Lesson]:
    """Yield each of `count` images once, mirrored in every other epoch (Jordan 2024, arXiv:2404.00498)."""
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

    def undo(self, images: Tensor) -> Tensor:
        """Convert normalized images back to pixels from 0 to 255, float."""
        mean, std = self._columns
        return images * std + mean


class TrainingData:
    """Images to learn, and images to judge by, which several runs can share.

    Attributes:
        begun: what a checkpoint records of them.
        device: that they lie on.
        teachers: whose answers are learnt; None without.
        images: to learn, as they are: float [N,3,H,W].
        judged: images and class indices to measure top-1 on after each epoch; None for none.
        normalize: from pixels.
        draw: gives images by their numbers.
    """

    images: Tensor
    judged: tuple[Tensor, Tensor] | None
    normalize: Normalization
    draw: Draw

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        judged: Dataset | None,
        size: int,
        repository: Path | None = None,
        teacher_outputs: Path | None = None,
    ) -> None:
        """List the images and load the teachers; the images are decoded by `load`.

        Args:
            recipe: how images are mixed, which are held out, and by whom they are taught.
            data: the images to learn, a zip or folder of `<class>/*.jpg`.
            judged: such images to measure on; see `judging_images`.
            size: height and width, pixels.
            repository: where the teachers are; default: the bundled models.
            teacher_outputs: a file that keeps the teachers' answers about mixtures, for other runs.

        Raises:
            ScriptError: see `Teachers`; or they take images of another size, which only mixtures can be given in.
            DatasetError: a path holds no labelled images.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._recipe, self._size, self._outputs = recipe, size, teacher_outputs
        self._dataset, _ = Dataset.open(data).hold_out(recipe.hold_out)
        self._judging, self.teachers, self._loaded = judged, None, False
        if recipe.teachers:
            self.teachers = Teachers(repository or DEFAULT_ROOT, recipe.teachers, self._dataset.classes)
            if self._taught_at != size and not recipe.mixtures:
                raise ScriptError(
                    f"the teachers take images of another size than {size}: {self._taught_at}; with --mix and "
                    "--mixtures they are asked before the images are resized"
                )
        self.begun: dict[str, Any] = {
            "classes": list(self._dataset.classes),
            "size": size,
            "data_sha256": self._dataset.sha256,
            "teachers": [] if self.teachers is None else self.teachers.provenance(),
        }

    @property
    def _taught_at(self) -> int:
        """The size of the images that teachers are asked about; the run's own if they take any."""
        return self._size if self.teachers is None or self.teachers.size is None else self.teachers.size

    def load(self) -> None:
        """Decode the images, mix them and ask the teachers, if it has not been done.

        Raises ScriptError: see `load_images` and `Mixtures`.
        """
        if self._loaded:
            return
        # The smaller first, so that a class that isn't the model's is reported at once.
        held = None if self._judging is None else load_images(self._judging, self._size, self._dataset.classes)
        raw, labels = load_images(self._dataset, self._size, self._dataset.classes)
        self.normalize = Normalization(raw, self.device)
        self.images = self.normalize(raw)
        self.judged = None if held is None else (self.normalize(held[0]), held[1].to(self.device))
        self.draw = as_they_are(self.images, labels.to(self.device), len(self._dataset.classes))
        if self._recipe.mixtures:
            if self._taught_at != self._size:
                raw, _ = load_images(self._dataset, self._taught_at, self._dataset.classes)
            given = raw, labels, len(self._dataset.classes), self._recipe
            self.draw = partial(self._mixed, Mixtures(*given, self.teachers, self._outputs, size=self._size))
        self._loaded = True

    def _mixed(self, mixtures: Mixtures, rows: Tensor) -> Lesson:
        """Draw mixed images, normalized on the device."""
        pixels, targets, taught = mixtures.draw(rows)
        taught = None if taught is None else taught.to(self.device)
        return self.normalize(pixels), targets.to(self.device), taught


def judging_images(recipe: Recipe, data: Path, validation: Path | None) -> Dataset | None:
    """Return the images that judge a run: `validation`, else the images that the run holds out, if any."""
    return Dataset.open(data).hold_out(recipe.hold_out)[1] if validation is None else Dataset.open(validation)

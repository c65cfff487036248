"""Students that are trained for an experiment: each by a way, kept in a folder with what it answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from deployments.contract.payload import Probabilities
from deployments.repository.repository import DEFAULT_ROOT, Model, find
from lab.benchmark.workloads import MEMBERS
from lab.training.recipe import Recipe
from scripts.dataset import Dataset
from scripts.errors import ScriptError, positive
from scripts.evaluate.accuracy import predict
from scripts.flags import flag

if TYPE_CHECKING:
    from lab.training.data import TrainingData

LABELS, MIXED, HINTON, DIST = "labels", "labels, mixed images", "Hinton", "DIST"
# What each way changes; the mixed images and the teachers are the same for all that have them.
WAYS: dict[str, dict[str, Any]] = {
    LABELS: {},
    MIXED: {"teacher_weight": 0.0},
    HINTON: {"teacher_weight": 1.0},
    DIST: {"teacher_weight": 0.5, "teacher_loss": "dist"},
}


class Student(NamedTuple):
    """One to train: its size in two ways, how it learns, and the seed of everything random."""

    size: int
    width: float
    way: str
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"width {self.width:g}, {self.size} pixels, {self.way}, seed {self.seed}"


@dataclass(frozen=True)
class School:
    """What all students share.

    Attributes:
        data: the images, a zip file or folder of `<class>/*.jpg`.
        folder: for checkpoints, models and answers, by which an interrupted run resumes.
    """

    data: Path
    folder: Path
    learn: int = flag(20_000, "images that students learn; default: %(default)s", type=positive)
    hold_out: int = flag(10_000, "images that judge, which no student learns; default: %(default)s", type=positive)
    epochs: int = flag(12, "of each student; default: %(default)s", type=positive)
    seeds: int = flag(3, "students that differ in nothing else; default: %(default)s", type=positive)
    widths: Sequence[float] = flag((0.25, 0.5), "of its channels; default: %(default)s", type=float, nargs="+")
    sizes: Sequence[int] = flag((32, 20), "of its images, pixels; default: %(default)s", type=int, nargs="+")
    mixtures: int = flag(2, "of each image beforehand, for the teachers; default: %(default)s", type=positive)

    @cached_property
    def _dataset(self) -> Dataset:
        return Dataset.open(self.data)

    @cached_property
    def _teachers(self) -> list[dict[str, Any]]:
        return [find(DEFAULT_ROOT, name).provenance() for name in MEMBERS]

    def students(self) -> list[Student]:
        """All of them; those of a size are together, because they share its images."""
        return [
            Student(size, width, way, seed)
            for size in self.sizes
            for seed in range(1, self.seeds + 1)
            for width in self.widths
            for way in WAYS
        ]

    def recipe(self, student: Student) -> Recipe:
        """How a student is trained; rates and augmentation are those of docs/training.md."""
        alone = student.way == LABELS
        taught: dict[str, Any] = {
            "mix": "either",
            "mix_probability": 0.5,
            "mixtures": self.mixtures,
            "teachers": MEMBERS,
        }
        return Recipe(
            "student",
            epochs=self.epochs,
            seed=student.seed,
            width=student.width,
            hold_out=max(self.hold_out, len(self._dataset) - self.learn),
            batch_size=500,
            learning_rate=0.12,
            head_learning_rate=0.335,
            bias_learning_rate=0.0265,
            label_smoothing=0.1,
            translate_px=round(student.size * (3 if alone else 2) / 32),
            cutout_px=student.size // 4 if alone else 0,
            **({} if alone else taught),
            **WAYS[student.way],
        )

    def judging(self) -> Dataset:
        """The images that judge: the same ones whatever is learnt."""
        _, held = Dataset.open(self.data).hold_out(self.hold_out)
        if held is None:
            raise ScriptError("--hold-out must be above 0: the students are judged by these images")
        return held

    def answers_of(self, student: Student) -> Path:
        """Where a finished student's probabilities are kept; what they depend on decides the name."""
        recipe = self.recipe(student)
        given = [recipe.to_json(), self.hold_out, self._dataset.sha256, self._teachers if recipe.teachers else None]
        return self.folder / f"{_digest(given)}-{student.size}.npy"

    def model_of(self, student: Student) -> Model:
        """A finished student as a model."""
        return find(self.folder / "models", self.answers_of(student).stem, 1)

    def train(self) -> Iterator[tuple[Student, Probabilities]]:
        """Train those that are not finished, and give what each answers about the images that judge.

        Raises:
            ScriptError: an image can't be read, or a teacher does not fit.
        """
        judging = self.judging()
        shared: dict[tuple[int, bool], TrainingData] = {}
        for student in (progress := tqdm(self.students(), unit="student")):
            progress.set_postfix_str(student.name)
            if not (file := self.answers_of(student)).exists():
                if not any(size == student.size for size, _ in shared):
                    shared.clear()
                self._train(student, shared)
                [answers] = predict([self.model_of(student)], judging)
                partial = file.with_suffix(".partial.npy")
                np.save(partial, answers)
                partial.replace(file)
            yield student, np.load(file)

    def finished(self) -> Iterator[tuple[Student, Probabilities]]:
        """What earlier runs finished."""
        for student in self.students():
            if (file := self.answers_of(student)).exists():
                yield student, np.load(file)

    def _train(self, student: Student, shared: dict[tuple[int, bool], TrainingData]) -> None:
        from lab.training.data import TrainingData
        from lab.training.export import export
        from lab.training.loop import Run

        recipe = self.recipe(student)
        taught = _digest([recipe.hold_out, self.mixtures, self._dataset.sha256, self._teachers])
        outputs = self.folder / f"teachers-{taught}.npz"
        key = student.size, bool(recipe.mixtures)
        if key not in shared:
            kept = outputs if recipe.mixtures else None
            shared[key] = TrainingData(recipe, self.data, None, student.size, teacher_outputs=kept)
        name = self.answers_of(student).stem
        checkpoint = self.folder / f"{name}.pt"
        Run(recipe, shared[key], checkpoint).finish()
        export(checkpoint, self.folder / "models", name, data=self.data, replace=True)


def _digest(of: Any) -> str:
    """A short name of what can be written as JSON."""
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]

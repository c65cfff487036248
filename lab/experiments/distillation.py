"""Students that learn from labels, by Hinton's distillation and by DIST, for two sizes of images.

The teachers are the bundled ResNet and DenseNet together. All students are judged by images that they do not learn,
with which the teachers were trained, too.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from deployments.members.openvino_autotune import cpu_ms
from deployments.repository.repository import DEFAULT_ROOT, Model, find
from ensemble_models.dataset import Dataset, truth_of
from ensemble_models.prediction import predict
from ensemble_models.statistics import top1
from lab.benchmark.workloads import MEMBERS
from lab.experiments.experiment import declared, training_images
from lab.rows import Part, Row, Rows
from lab.training.recipe import Recipe

LEARNT, JUDGED, EPOCHS, SEEDS, WIDTH, SIZES, MIXTURES = 20_000, 10_000, 12, (1, 2, 3), 0.5, (32, 20), 2
# The subject of the reported finding on teaching by correlations.
DISTILLED = "distillation by the correlations of a stronger teacher (DIST)"
LABELS, MIXED, HINTON, DIST, TEACHERS = "labels", "labels, mixed images", "Hinton", "DIST", "both teachers alone"
# What each way changes; the mixed images and the teachers are the same for all that have them.
WAYS: dict[str, dict[str, Any]] = {
    LABELS: {},
    MIXED: {"teacher_weight": 0.0},
    HINTON: {"teacher_weight": 1.0},
    DIST: {"teacher_weight": 0.5, "teacher_loss": "dist"},
}


@dataclass(frozen=True)
class Student:
    """One to train: the edge of its images, how it learns, and the seed of everything random."""

    size: int
    way: str
    seed: int

    def recipe(self, images: int) -> Recipe:
        """Make the recipe for training on labelled images; lab/training/README.md has its rates and augmentation."""
        alone = self.way == LABELS
        taught: dict[str, Any] = {"mix": "either", "mix_probability": 0.5, "mixtures": MIXTURES, "teachers": MEMBERS}
        return Recipe(
            "student",
            epochs=EPOCHS,
            seed=self.seed,
            width=WIDTH,
            hold_out=max(JUDGED, images - LEARNT),
            batch_size=500,
            learning_rate=0.12,
            head_learning_rate=0.335,
            bias_learning_rate=0.0265,
            label_smoothing=0.1,
            translate_px=round(self.size * (3 if alone else 2) / 32),
            cutout_px=self.size // 4 if alone else 0,
            **({} if alone else taught),
            **WAYS[self.way],
        )


class School:
    """The labelled images, and a folder for the trained students."""

    def __init__(self, data: Path) -> None:
        """Set the images, a zip file or folder of `<class>/*.jpg`."""
        self._data, self._dataset = data, Dataset.open(data)
        self._folder = tempfile.TemporaryDirectory()
        # By the size of images, and whether they are labelled alone: the teachers answer once.
        self._lessons: dict[tuple[int, bool], Any] = {}

    def train(self, student: Student) -> Iterator[Row]:
        """Train a student, and judge it. Raises ScriptError if an image can't be read, or a teacher does not fit."""
        from lab.training.__main__ import keep_freed_memory
        from lab.training.architectures import multiplications, network
        from lab.training.data import TrainingData
        from lab.training.export import export
        from lab.training.loop import Run

        keep_freed_memory()
        recipe, root = student.recipe(len(self._dataset)), Path(self._folder.name)
        key, checkpoint = (student.size, student.way == LABELS), root / "student.pt"
        if key not in self._lessons:
            self._lessons[key] = TrainingData(recipe, self._data, None, student.size)
        checkpoint.unlink(missing_ok=True)
        Run(recipe, self._lessons[key], checkpoint).finish()
        export(checkpoint, root / "models", "student", data=self._data, replace=True)
        model = find(root / "models", "student", 1)
        untrained = network(recipe.to_json(), len(model.labels or ()))
        yield {"mmac": multiplications(untrained, student.size), **self._judged([model])}

    def teachers(self) -> Iterator[Row]:
        """Judge the teachers together."""
        yield self._judged([find(DEFAULT_ROOT, name) for name in MEMBERS])

    def _judged(self, models: Sequence[Model]) -> Row:
        _, judging = self._dataset.hold_out(JUDGED)
        assert judging is not None
        answers = np.mean(predict(models, judging), axis=0)
        cost = sum(cpu_ms(models))
        return {"top1": top1(answers, truth_of(models, judging)), "cpu_ms": cost}


def students() -> list[Student]:
    """List the students."""
    return [Student(size, way, seed) for size, seed, way in product(SIZES, SEEDS, WAYS)]


def parts(seconds: float) -> Sequence[Part]:
    """Make each student a part."""
    school = School(training_images())
    taught = [Part(str(each), partial(school.train, each), vars(each)) for each in students()]
    return [Part(TEACHERS, school.teachers, {"way": TEACHERS, "size": 32}), *taught]


def shown(rows: Rows) -> Rows:
    """Join the seeds of a size and way of learning, beside the seeds that learnt from labels."""
    by: dict[tuple[int, str], Rows] = {}
    for row in rows:
        by.setdefault((row["size"], row["way"]), []).append(row)
    mean = {key: statistics.mean(row["top1"] for row in own) for key, own in by.items()}
    found = []
    for (size, way), own in by.items():
        tops = [row["top1"] for row in own]
        row = {**own[0], "top1": mean[size, way], "seeds": ", ".join(f"{each:.2f}" for each in tops)}
        row |= {"wrong": 100 - row["top1"], "low": 100 - max(tops), "high": 100 - min(tops)}
        if way not in {LABELS, TEACHERS}:
            row["gain"] = row["top1"] - mean[size, LABELS]
        found.append(row)
    return sorted(found, key=lambda row: (row["way"] != TEACHERS, -row["size"]))


def compare(rows: Rows) -> Mapping[str, str]:
    """Compare what smaller images cost, and what teaching by correlations gives."""
    wrong = {(row["size"], row["way"]): row["wrong"] for row in rows}
    large, small = max(SIZES), min(SIZES)
    gains = [f"{row['gain']:+.2f} points, {row['size']} pixels" for row in rows if row["way"] == DIST]

    def errors(size: int, way: str, base: float | None = None) -> str:
        change = "" if base is None else f", {100 * (wrong[size, way] / base - 1):+.0f} %"
        return f"{wrong[size, way]:.2f} % wrong{change}, {size} pixels, by {way}"

    return {
        "edge of the images, before": f"{large} pixels",
        "edge of the images, after": f"{small} pixels",
        "error with large images": errors(large, LABELS),
        "error with small images": errors(small, LABELS, wrong[large, LABELS]),
        **({DISTILLED: f"{', '.join(gains)}, against labels"} if gains else {}),
    }


DISTILLATION = declared(
    "distillation",
    parts=parts,
    ours=lambda row: row["way"] in {HINTON, DIST},
    shown=shown,
    computed=compare,
)

"""Trains small students by labels, by Hinton's distillation and by DIST, and puts each in front of its teachers.

    ensemble experiments distillation --data train.zip
    ensemble experiments distillation --data train.zip --finished       # of an interrupted run, what is there

The teachers are the bundled ResNet and DenseNet together. All students are judged by images of --data that they do not
learn, with which the teachers were trained, too. It resumes from --folder, and needs the `train` extra (PyTorch).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.payload import Probabilities
from deployments.repository.repository import DEFAULT_ROOT, Model, find
from lab.benchmark.workloads import MEMBERS
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows
from lab.experiments.students import DIST, HINTON, LABELS, WAYS, School, Student
from lab.pictures.chart import Bar
from scripts.dataset import default_data
from scripts.errors import ScriptError, errors_in_one_line
from scripts.evaluate.accuracy import Truth, hits, predict, top1
from scripts.evaluate.ensembles import Members
from scripts.evaluate.measure import truth_of
from scripts.flags import add_flags, described, from_flags
from scripts.interval import Interval
from scripts.results import Table
from scripts.tune_cascade.__main__ import cost_ms
from scripts.tune_cascade.search import choose, halves

LOSS, ROUNDS, BOTH = 0.1, 3, "both"
HEADINGS = (
    "width",
    "pixels",
    "MMAC",
    "CPU per image, ms",
    "learns from",
    "top-1 of each seed, %",
    "top-1, %",
    "against labels, points (95 %)",
    "answered by it in front, %",
    "cascade against the teachers, points",
    "CPU of the cascade, % of the teachers'",
)


def check() -> None:
    """Raise ScriptError if PyTorch is missing."""
    if find_spec("torch") is None:
        raise ScriptError("training needs PyTorch: make train, or pip install torch torchvision")


def measure(school: School, *, finished: bool) -> Rows:
    """Train the students, or take those that are finished, and judge them.

    Raises:
        ScriptError: none is finished, or see `School.train`.
    """
    dataset = school.judging()
    found = dict(school.finished() if finished else school.train())
    if not found:
        raise ScriptError(f"no student in {school.folder} is finished; leave --finished out to train")
    teachers = [find(DEFAULT_ROOT, name) for name in MEMBERS]
    labels, both = truth_of(teachers, dataset), np.mean(predict(teachers, dataset), axis=0)
    judge = Judge(labels, both, halves(dataset), sum(map(cpu_ms, teachers)))
    first: Mapping[str, Any] = {
        "epochs": school.epochs,
        "mixtures": school.mixtures,
        "learnt": school.learn,
        "judged": len(dataset),
        "teachers_top1": top1(both, labels),
        "teachers_cpu_ms": judge.teachers_ms,
        "missing": [each.name for each in school.students() if each not in found],
    }
    rows: Rows = [dict(first)]
    for size, width in dict.fromkeys((each.size, each.width) for each in found):
        own = {each: answers for each, answers in found.items() if (each.size, each.width) == (size, width)}
        # Students that differ in how they learnt compute alike.
        shape = {"width": width, "size": size, **costs(school, next(iter(own)))}
        rows += [{**shape, **judge.way(way, own, shape["cpu_ms"])} for way in WAYS if any(way == s.way for s in own)]
    return rows


def costs(school: School, student: Student) -> dict[str, float]:
    """Multiplications, millions, and CPU of an image, milliseconds."""
    from lab.training.architectures import multiplications, network

    model = school.model_of(student)
    untrained = network(school.recipe(student).to_json(), len(model.labels or ()))
    return {"mmac": multiplications(untrained, student.size), "cpu_ms": cpu_ms(model)}


def cpu_ms(model: Model) -> float:
    """The CPU time of an image of a batch, the median of several rounds."""
    return statistics.median(cost_ms(model) for _ in range(ROUNDS))


class Judge:
    """What students are judged by: labelled images, the teachers' answers, and which images choose thresholds."""

    def __init__(self, labels: Truth, both: Probabilities, choosing: Any, teachers_ms: float) -> None:
        """Set them; `choosing` is bool [N], and the teachers' CPU that of an image."""
        self._labels, self._both, self._choosing, self.teachers_ms = labels, both, choosing, teachers_ms

    def way(self, way: str, found: Mapping[Student, Probabilities], cpu: float) -> dict[str, Any]:
        """The figures of the students of a shape that learnt one way, against those of the same seeds by labels."""
        own = {each.seed: answers for each, answers in found.items() if each.way == way}
        plain = {each.seed: answers for each, answers in found.items() if each.way == LABELS}
        shared = own.keys() & plain.keys()
        row: dict[str, Any] = {
            "way": way,
            "top1": {str(seed): top1(answers, self._labels) for seed, answers in own.items()},
            **self._cascades(own.values(), cpu),
        }
        if way != LABELS and shared:
            interval = Interval.paired(self._hits(own, shared) - self._hits(plain, shared))
            row["difference"] = [interval.mean, interval.low, interval.high]
        return row

    def _hits(self, found: Mapping[int, Probabilities], seeds: Iterable[int]) -> Any:
        """The share of the seeds that are right about each image, float [N]."""
        return np.mean([hits(found[seed], self._labels) for seed in seeds], axis=0)

    def _cascades(self, found: Iterable[Probabilities], cpu: float) -> dict[str, list[float]]:
        """Of each student in front of the teachers: the threshold, and what it does to the images that judge it."""
        result: dict[str, list[float]] = {"exit_at": [], "answered": [], "lost": [], "cpu_share": []}
        for answers in found:
            costs = {"student": cpu, BOTH: self.teachers_ms}
            members = Members(
                {"student": answers, BOTH: self._both}, self._labels, {"student": 0.0, BOTH: 1.0}, costs, "mean"
            )
            choice, judged = choose(members.part(self._choosing), LOSS), members.part(~self._choosing)
            walk = judged.walk(choice.order, choice.exit_at)
            right, full = walk.answers == judged.labels, judged.full() == judged.labels
            result["exit_at"] += choice.exit_at
            result["answered"].append(100 * walk.stops[0])
            result["lost"].append(float(100 * (right.mean() - full.mean())))
            result["cpu_share"].append(100 * walk.cost / self.teachers_ms)
        return result


def table(rows: Rows) -> Table:
    """A line for each shape and way, and what the rest says in sentences."""
    first, *shapes = rows
    lines = []
    for row in shapes:
        seeds = list(row["top1"].values())
        told = "" if "difference" not in row else "{:+.2f} ({:+.2f} to {:+.2f})".format(*row["difference"])
        answered, lost, share = (statistics.mean(row[name]) for name in ("answered", "lost", "cpu_share"))
        costs = [f"{row['width']:g}", str(row["size"]), f"{row['mmac']:.1f}", f"{row['cpu_ms']:.3f}", row["way"]]
        figures = [", ".join(f"{each:.2f}" for each in seeds), f"{statistics.mean(seeds):.2f}", told]
        lines.append([*costs, *figures, f"{answered:.1f}", f"{lost:+.2f}", f"{share:.0f}"])
    missing = f"Not trained: {'; '.join(first['missing'])}." if first["missing"] else "All students were trained."
    notes = [
        f"{first['epochs']} epochs of {first['learnt']:,} images each; where images are mixed, half of them are, in "
        f"one of {first['mixtures']} ways. Judged by {first['judged']:,} others, half of which chose the thresholds; "
        "the other half judged the cascades.",
        f"The teachers together: {first['teachers_top1']:.2f} % of these images, {first['teachers_cpu_ms']:.2f} ms of "
        "CPU per image.",
        missing,
    ]
    return Table(HEADINGS, lines, words=(4,), notes=notes)


def compare(rows: Rows) -> Mapping[str, Here]:
    """The sizes, and how DIST changes the wrong answers of the widest student of the smaller one."""
    sizes = sorted({row["size"] for row in rows[1:]})
    found = {
        "edge of a student's images, before": Here(sizes[-1], f"{sizes[-1]} pixels", "CIFAR-10 instead of photographs")
    }
    if len(sizes) > 1:
        small = {row["way"]: row for row in sorted(rows[1:], key=lambda row: row["width"]) if row["size"] == sizes[0]}
        found["edge of a student's images, after"] = Here(sizes[0], f"{sizes[0]} pixels", "the same")
        if DIST in small and LABELS in small:
            wrong = [100 - statistics.mean(small[way]["top1"].values()) for way in (LABELS, DIST)]
            change = 100 * (wrong[1] / wrong[0] - 1)
            differs = "wrong answers instead of a regression's error; DIST against labels, the widest student"
            text = f"{change:+.1f} %: {wrong[0]:.2f} % wrong by labels, {wrong[1]:.2f} % by DIST"
            found["change of the mean absolute error"] = Here(change, text, differs)
    return found


def picture(rows: Rows) -> Groups:
    """The wrong answers of each shape by way, those with teachers coloured."""
    groups: dict[str, list[Bar]] = {}
    for row in rows[1:]:
        wrong = [100 - each for each in row["top1"].values()]
        mean, ours = statistics.mean(wrong), row["way"] in {HINTON, DIST}
        bar = Bar(row["way"], mean, f"{mean:.2f} % ({min(wrong):.2f} to {max(wrong):.2f})", ours=ours)
        groups.setdefault(f"width {row['width']:g}, {row['size']} pixels, {row['mmac']:.1f} MMAC", []).append(bar)
    return list(groups.items())


DISTILLATION = Experiment(
    "distillation",
    "Held-out images answered wrongly, %; the mean and the range of the seeds; students with teachers are coloured",
    "CIFAR-10's training images, students in float, teachers in int8",
    check,
    lambda _: (),
    table,
    compare,
    picture,
    seconds=0.0,
    ascending=True,
)


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, train, judge and write the files."""
    parser = described(__doc__, "ensemble experiments distillation")
    add, test = parser.add_argument, default_data()
    add("--data", type=Path, default=test and test.with_name("train.zip"), help="zip file or folder of <class>/*.jpg")
    add("--folder", type=Path, default=Path("checkpoints/distillation"), help="is resumed from; default: %(default)s")
    add_flags(parser, School)
    add("--finished", action="store_true", help="train nothing, and store what earlier runs finished")
    args = parser.parse_args(arguments)
    if args.data is None:
        parser.error("name the images by --data")
    if min(args.widths) <= 0:
        parser.error("--widths must be above 0")
    with errors_in_one_line():
        check()
        from lab.training.__main__ import SMALLEST, keep_freed_memory

        if min(args.sizes) < SMALLEST:
            parser.error(f"--sizes must be {SMALLEST} or more")
        keep_freed_memory()
        made = partial(measure, from_flags(School, args), finished=args.finished)
        replace(DISTILLATION, measure=lambda _: [Part(str(vars(args)), made)]).run(None, again=True)

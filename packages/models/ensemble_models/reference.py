"""Compares a model with the answers of its training's own evaluation, image by image, and looks for the reason."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import openvino as ov
from msgspec.structs import replace
from numpy.typing import NDArray

from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Interpolation, Preprocessing, Resize
from ensemble_models.dataset import Dataset, decode_all, entries
from ensemble_models.options import Table
from ensemble_models.prediction import runner
from ensemble_models.statistics import Interval, Truth
from scripts.errors import ScriptError

FILE, LABEL, PROBABILITY = "file", "label", "probability"
# Reasons are tried on so many images, those that differ most first.
MOST_TRIED, MOST_SHOWN = 100, 10
# A reason explains a difference that is larger than rounding and that it makes at most half as large.
NOTICED, EXPLAINED = 0.01, 0.5
# Fewer equal labels than this are another model or other classes, whatever the reason.
LEAST_AGREEMENT = 95.0
CHUNK = 50
FILTERS: tuple[Interpolation, ...] = ("bilinear", "bicubic", "area", "linear", "nearest")
WAYS: tuple[tuple[Resize, float], ...] = (("crop", 1.0), ("crop", 0.875), ("stretch", 1.0), ("letterbox", 1.0))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """The answers of another program to some images.

    Attributes:
        images: the images, in the order of the answers.
        answers: the index of each image's class, int64 [images].
        scores: its probability or, for all classes, [images,classes]; None if the file has none.
    """

    images: Dataset
    answers: Truth
    scores: Floats | None

    @classmethod
    def read(cls, file: Path, labels: Sequence[str], folder: Path) -> Reference:
        """Read a CSV file with the columns `file`, `label` and, where there, `probability` or one for each class.

        Args:
            file: the CSV file.
            labels: the class names of the model, in order; `label` is one of them, or an index.
            folder: the folder or zip file of the images.

        Raises:
            ScriptError: a column, a class or an image is missing.
        """
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
        if not rows or not {FILE, LABEL} <= rows[0].keys():
            raise ScriptError(f"{file} needs the columns {FILE} and {LABEL}, and an image in each line below them")
        index = {str(number): number for number in range(len(labels))} | {name: at for at, name in enumerate(labels)}
        if unknown := [row[LABEL] for row in rows if row[LABEL] not in index]:
            raise ScriptError(f"{file} answers {unknown[0]!r}, which is none of the {len(labels)} classes of the model")
        columns = [PROBABILITY] if PROBABILITY in rows[0] else [name for name in labels if name in rows[0]]
        if len(columns) not in {0, 1, len(labels)}:
            raise ScriptError(f"{file} has a column for {len(columns)} of {len(labels)} classes; it needs all or none")
        try:
            scores = np.array([[float(row[name]) for name in columns] for row in rows])
        except (TypeError, ValueError) as err:
            raise ScriptError(f"{file}: a probability is no number: {err}") from err
        answers = np.array([index[row[LABEL]] for row in rows], np.int64)
        return cls(_images(folder, [row[FILE] for row in rows]), answers, scores if columns else None)

    def differences(self, outputs: Probabilities, rows: NDArray[np.int64]) -> Floats:
        """Compute how far some images' probabilities are apart at most; without any, 1 for another label."""
        answers = self.answers[rows]
        if self.scores is None:
            return np.asarray(outputs.argmax(1) != answers, np.float64)
        known = self.scores[rows]
        mine = outputs if known.shape[1] > 1 else outputs[np.arange(len(rows)), answers, None]
        return np.asarray(np.abs(mine - known).max(1), np.float64)


class Way(NamedTuple):
    """A way to answer: the pixels that are made of an image, and how the network computes.

    Attributes:
        change: what differs from the way that is compared.
        flag: the option of `ensemble prepare` that does it; empty for none.
    """

    change: str
    flag: str
    wanted: Preprocessing
    is_flipped: bool = False
    is_float: bool = False


def ways(wanted: Preprocessing) -> Iterator[Way]:
    """List the way that is compared, and what may be the reason of a difference, one change at a time."""
    yield Way("as it is", "", wanted)
    for name in FILTERS:
        if name != wanted.interpolation:
            yield Way(f"interpolation: {name}", f"--interpolation {name}", replace(wanted, interpolation=name))
    for resize, ratio in WAYS:
        if (resize, ratio) != (wanted.resize, wanted.crop_ratio):
            flag = f"--resize {resize}{f' --crop-ratio {ratio:g}' if resize == 'crop' else ''}"
            yield Way(f"crop: {resize} {ratio:g}", flag, replace(wanted, resize=resize, crop_ratio=ratio))
    yield Way("order: red and blue exchanged", "the other --channel-order", wanted, is_flipped=True)
    yield Way("precision: float32", "", wanted, is_float=True)


def compare(reference: Reference, network: ov.Model, wanted: Preprocessing, labels: Sequence[str]) -> str:
    """Compare the answers of a network with a reference, print what differs, and try the usual reasons.

    Args:
        reference: the other program's answers.
        network: uint8 BGR [N,H,W,3] to float32 [N,classes].
        wanted: the pixels that it takes.
        labels: its class names, in order.

    Returns:
        Why the model should not be taken as it is: an option would make it agree, or it does not agree at all. Empty
        if it agrees.
    """
    tried, every = list(ways(wanted)), np.arange(len(reference.images))
    predict = _predictor(reference.images, network)
    outputs = predict(tried[0], every)
    apart, same = reference.differences(outputs, every), outputs.argmax(1) == reference.answers
    agreement = Interval.share(same)
    worst = np.argsort(-(apart + ~same), kind="stable")
    print(f"{agreement} of the labels of {len(every)} images agree with the reference")
    if reference.scores is not None:
        print(
            f"largest difference of a probability in an image: {apart.mean():.4f} on average, {apart.max():.4f} at most"
        )
    for row in worst[:MOST_SHOWN].tolist():
        if apart[row] > NOTICED or not same[row]:
            print(f"  {reference.images.names[row]}: {_both(reference, outputs, labels, row)}")
    if apart.mean() <= NOTICED and bool(same.all()):
        return ""
    rows = worst[:MOST_TRIED]
    found = [predict(way, rows) for way in tried]
    means = [float(reference.differences(each, rows).mean()) for each in found]
    shares = [float(100 * (each.argmax(1) == reference.answers[rows]).mean()) for each in found]
    order = np.argsort(means, kind="stable").tolist()
    lines = [(tried[at].change, f"{shares[at]:.1f}", f"{means[at]:.4f}") for at in order]
    notes = [f"On the {len(rows)} images that differ most."]
    Table(("tried", "labels agree, %", "mean difference"), lines, (0,), notes=notes).show()
    best = tried[order[0]] if means[order[0]] <= EXPLAINED * means[0] and means[0] > NOTICED else None
    print(f"most likely reason: {best.change if best else 'none of those tried'}")
    if best and best.flag:
        return f"the reference agrees clearly better with another way, {best.change}: pass {best.flag}"
    if agreement.mean >= LEAST_AGREEMENT:
        return ""
    return (
        f"only {agreement} of the labels agree with the reference, and nothing that was tried explains it: see --mean "
        "and --std, --labels and the model's file"
    )


def _both(reference: Reference, outputs: Probabilities, labels: Sequence[str], row: int) -> str:
    mine, theirs = int(outputs[row].argmax()), int(reference.answers[row])
    known = "" if reference.scores is None else f" {reference.scores[row].max():.3f}"
    return f"{labels[mine]} {outputs[row, mine]:.3f}, and the reference {labels[theirs]}{known}"


def _predictor(images: Dataset, network: ov.Model) -> Callable[[Way, NDArray[np.int64]], Probabilities]:
    encoded = [image for image, _ in images.read()]
    compiled = {False: runner(network), True: runner(network, INFERENCE_PRECISION_HINT="f32")}

    def predict(way: Way, rows: NDArray[np.int64]) -> Probabilities:
        parts = []
        for begin in range(0, len(rows), CHUNK):
            some = rows[begin : begin + CHUNK].tolist()
            pixels = decode_all([images.names[row] for row in some], [encoded[row] for row in some], way.wanted)
            parts.append(compiled[way.is_float](np.ascontiguousarray(pixels[..., ::-1]) if way.is_flipped else pixels))
        return np.concatenate(parts)

    return predict


def _images(folder: Path, files: Sequence[str]) -> Dataset:
    """Find the images that a file names, by their path below a folder or, if it is unique, by their name."""
    paths, found = set(entries(folder)), list[str]()
    names = dict[str, list[str]]()
    for path in paths:
        names.setdefault(PurePath(path).name, []).append(path)
    for file in files:
        same = [file] if file in paths else names.get(PurePath(file).name, [])
        if len(same) != 1:
            raise ScriptError(
                f"{folder} has {len(same) or 'no'} images {file!r}; name the folder of the images by --data"
            )
        found.append(same[0])
    return Dataset(folder, tuple(found))

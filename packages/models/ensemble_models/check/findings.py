"""What accuracies alone do not show: pixels, frequent confusions, and disagreements."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from deployments.contract.errors import EnsembleError
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import read_header
from ensemble_models.dataset import LIMITS, Dataset
from ensemble_models.ensembles import Members
from ensemble_models.statistics import Truth
from graph.config import EnsembleConfig
from graph.features.proportion import wilson
from graph.signature import EnsembleSignature

MOST_CONFUSIONS, MOST_IMAGES = 5, 5
# Images whose headers are read.
MEASURED = 200


def sizes(config: EnsembleConfig, agreed: EnsembleSignature, dataset: Dataset) -> Iterator[str]:
    """Describe the pixels that each member gets, the preparation of its model, and the images' own size."""
    for member in config.members:
        wanted = agreed.preprocessing[member.name]
        if not isinstance(wanted, Preprocessing):
            yield f"{member.name} gets images as they are sent."
            continue
        own = member.signature(config.model_repository)
        height, width = wanted.size
        centre = f"the centre crop of {wanted.crop_ratio:g} of the shorter side"
        cut = centre if wanted.resize == "crop" else wanted.resize
        differs = own.crop_ratio not in {None, wanted.crop_ratio}
        other = f"; its model was prepared for {own.crop_ratio:g}" if differs else ""
        yield f"{member.name} gets {height} x {width} pixels ({cut}{other})."
    heights, widths = [], []
    for encoded, _ in islice(dataset.read(), MEASURED):
        try:
            header = read_header(encoded, LIMITS)
        except EnsembleError:
            continue
        heights.append(header.height)
        widths.append(header.width)
    if heights:
        yield f"The images have {statistics.median(heights):g} x {statistics.median(widths):g} pixels (medians)."


def confusions(answers: Truth, labels: Truth, names: Sequence[str]) -> Iterator[str]:
    """Describe the classes that are most often taken for another one, where the images show that it is no chance.

    A class has to be taken for the other one more than once, and, by the lower end of the interval, more often than if
    the errors were spread evenly over all classes.
    """
    totals = Counter(labels.tolist())
    wrong = answers != labels
    pairs = Counter(zip(labels[wrong].tolist(), answers[wrong].tolist(), strict=True))
    evenly = wrong.mean() / max(len(names) - 1, 1)
    for (right, answered), count in pairs.most_common(MOST_CONFUSIONS):
        low, share, high = wilson(count, totals[right])
        if count > 1 and low > evenly:
            yield (
                f"{names[right]} is taken for {names[answered]}: {count} of {totals[right]} images, {share:.1%} "
                f"(95 % interval {100 * low:.1f} to {100 * high:.1f})."
            )


def disagreements(members: Members, answers: Truth, names: Sequence[str], dataset: Dataset) -> Iterator[str]:
    """Describe how often the members disagree, and the images on which they do so most surely."""
    if len(members.scores) < 2:
        return
    said = {name: scores.argmax(axis=1) for name, scores in members.scores.items()}
    sure = {name: scores.max(axis=1) for name, scores in members.scores.items()}
    differ = np.any([each != answers for each in said.values()], axis=0)
    if not differ.any():
        yield "The members agree on every image."
        return
    right = (answers == members.labels)[differ].mean()
    yield f"The members disagree on {differ.mean():.1%} of the images, of which the ensemble has {right:.1%} right:"
    # Those first on which even the less sure member is sure.
    order = np.argsort(-np.min(list(sure.values()), axis=0) * differ, kind="stable")
    for row in order[: min(MOST_IMAGES, int(differ.sum()))].tolist():
        votes = ", ".join(f"{name}: {names[said[name][row]]} {sure[name][row]:.2f}" for name in said)
        yield f"  {dataset.names[row]} ({votes})"

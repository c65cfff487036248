"""Measures models and ensembles on labelled images, of a repository or of a configuration.

Besides accuracies it finds pixels, frequent confusions, and disagreements.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deployments.combiner import Method
from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Preprocessing
from deployments.contract.proportion import wilson
from deployments.repository.repository import find, versions
from ensemble_models.check.choice import Choice
from ensemble_models.check.report import ENSEMBLE, Score, gain, joined
from ensemble_models.dataset import Dataset, check_image, indices, truth_of
from ensemble_models.ensembles import Members
from ensemble_models.learnt import used_for
from ensemble_models.prediction import Candidate, measured_predictions, of_configuration, of_models, weight_bytes
from ensemble_models.statistics import Interval, Truth, hits
from ensemble_models.subsets import Panel
from ensemble_models.writing import model_names
from graph.config import EnsembleConfig
from graph.signature import EnsembleSignature
from scripts.errors import ScriptError

if TYPE_CHECKING:
    from ensemble_features.cascade.settings import CascadeSettings

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
    sides = []
    for name, (encoded, _) in islice(zip(dataset.names, dataset.read(), strict=True), MEASURED):
        with suppress(ScriptError):
            header = check_image(name, encoded)
            sides.append((header.height, header.width))
    if sides:
        height, width = map(statistics.median, zip(*sides, strict=True))
        yield f"The images have {height:g} x {width:g} pixels (medians)."


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


INT8 = "INT8"


class Results(NamedTuple):
    """The results of a measurement.

    Attributes:
        scores: of each model and ensemble.
        sentences: on them.
        choice: which members pay; None if there is no choice.
    """

    scores: list[Score]
    sentences: list[str]
    choice: Choice | None = None


def repository(root: Path, names: Sequence[str], dataset: Dataset, method: Method = "mean") -> Results:
    """Measure every version of models, and an ensemble for float and for int8 if every model has such a version.

    All models of the repository are measured unless some are named; the ensemble combines them with equal weights.

    Returns:
        The models' scores, then the ensembles', and a sentence on each ensemble.

    Raises:
        ScriptError: there are no models, or classes of the dataset or of two models differ.
        ModelError: a model is unknown or damaged.
    """
    names = names or model_names(root)
    # Of a model that isn't there, `find` says which there are.
    models = [
        find(root, name, version) for name in names for version in versions(root, name) or [find(root, name).version]
    ]
    if not models:
        raise ScriptError(f"{root.absolute()} holds no models; make one with ensemble prepare, or name --repository")
    truth_of(models, dataset)
    return measured(of_models(models), dataset, models[0].labels or (), dict.fromkeys(names, 1.0), method)


def served(
    config: EnsembleConfig, agreed: EnsembleSignature, dataset: Dataset, method: Method | None = None
) -> Results:
    """Measure what a configuration serves, combined as it says or by another method, and the members' other versions.

    Returns:
        As `repository`, and sentences on sizes, confusions and disagreements.

    Raises:
        ScriptError: the dataset has other classes than the members.
        ConfigurationError: a member can't run.
    """
    weights = {name: (config.combiner.weights or config.weights).get(name, 0.0) for name in config.weights}
    together = agreed.labels, weights, method or config.combiner.method, config.ensemble.field("cascade")
    found = measured(of_configuration(config, agreed), dataset, *together)
    return found._replace(sentences=[*sizes(config, agreed, dataset), *found.sentences])


def measured(
    candidates: Sequence[Candidate],
    dataset: Dataset,
    names: Sequence[str],
    weights: Mapping[str, float],
    method: Method,
    cascade: CascadeSettings | None = None,
) -> Results:
    """Measure candidates and the ensembles that they make; see `selections`.

    Args:
        candidates: versions of models.
        dataset: labelled images.
        names: of the classes, in order of index.
        weights: of the members that have a say, by name.
        method: how predictions are combined.
        cascade: in which order members are asked, and until when; None for all of them.
    """
    labels = indices(dataset, names, "the models")
    outputs, costs = measured_predictions(candidates, dataset)
    scores, ensembles = list[Score](), list[Score]()
    for each, output in zip(candidates, outputs, strict=True):
        right = output.argmax(axis=1) == labels
        scores.append(Score.of(each.name, each.precision, output.max(axis=1), right, each.version))
    sentences, findings = list[str](), list[str]()
    for rows in selections(candidates, list(weights)):
        parts, chosen = [scores[row] for row in rows.values()], {name: outputs[row] for name, row in rows.items()}
        members = Members(chosen, labels, weights, dict.fromkeys(rows, 1.0), method)
        combined = members.combined(list(chosen))
        answers, sure = combined.argmax(axis=1), combined.max(axis=1)
        if cascade is not None:
            walk = members.walk(cascade.order, cascade.exit_at)
            answers, sure = walk.answers, walk.sure
            alone = f"answers {walk.stops[0]:.1%} of the images by {cascade.order[0]} alone"
            sentences.append(f"{joined(parts)} ensemble: the cascade {alone}.")
        if not findings:
            findings = [*confusions(answers, labels, names), *disagreements(members, answers, names, dataset)]
        if len(rows) < 2:
            continue
        best = max(rows.values(), key=lambda row: scores[row].top1)
        ensembles.append(Score.of(ENSEMBLE, joined(parts), sure, answers == labels))
        difference = Interval.paired((answers == labels) - hits(outputs[best], labels))
        if all(candidates[row].is_served for row in rows.values()):
            members_served = ", ".join(f"{score.name} {score.version}" for score in parts)
            sentences.append(f"The configuration serves the {joined(parts)} ensemble: {members_served}.")
        sentences.append(gain(ensembles[-1], parts, difference))
    sentences += findings
    for each in candidates:
        if each.model is not None and (use := used_for(each.model, dataset)):
            sentences.append(
                f"{each.name} {each.version} was {use} these images, so its figures are too high; take other images."
            )
    return Results([*scores, *ensembles], sentences, _choice(candidates, outputs, costs, labels, list(weights)))


def _choice(
    candidates: Sequence[Candidate],
    outputs: Sequence[Probabilities],
    costs: Sequence[float | None],
    labels: Truth,
    names: Sequence[str],
) -> Choice | None:
    """Offer the choice among the members that are served, or else among each model's highest version."""
    found = selections(candidates, names)
    rows = found[0 if any(each.is_served for each in candidates) else -1] if found else {}
    costs_ms = {name: cost for name, row in rows.items() if (cost := costs[row]) is not None}
    if len(rows) < 2 or costs_ms.keys() != rows.keys():
        return None
    megabytes = {name: weight_bytes(model) / 1e6 for name, row in rows.items() if (model := candidates[row].model)}
    scores = {name: outputs[row] for name, row in rows.items()}
    return Choice(Panel(Members(scores, labels, dict.fromkeys(rows, 1.0), costs_ms)), megabytes)


def selections(candidates: Sequence[Candidate], names: Sequence[str]) -> list[dict[str, int]]:
    """Select the versions that make an ensemble, positions by name: the served ones, the float ones, the int8 ones.

    Members of a kind are each model's highest version of it; where a model has none of it, there is no such ensemble.
    """
    kinds: tuple[Callable[[Candidate], bool], ...] = (
        lambda each: each.is_served,
        lambda each: each.precision != INT8,
        lambda each: each.precision == INT8,
    )
    found: list[dict[str, int]] = []
    for fits in kinds:
        # The versions ascend, so that the highest stays.
        rows = {each.name: row for row, each in enumerate(candidates) if each.name in names and fits(each)}
        if len(rows) == len(names) and rows not in found:
            found.append(rows)
    return found

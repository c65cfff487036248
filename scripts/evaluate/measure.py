"""Measures models and ensembles on labelled images: a repository's, a configuration's, or a running server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method
from deployments.contract.payload import Probabilities
from deployments.repository.errors import ModelError
from deployments.repository.network import precision
from deployments.repository.repository import Model, find, versions
from deployments.repository.sources import open_repository
from graph.config import EnsembleConfig
from graph.sections import CascadeSettings
from graph.signature import EnsembleSignature
from scripts.dataset import Dataset
from scripts.errors import ScriptError
from scripts.evaluate.accuracy import Truth, hits, indices, predictions, truth
from scripts.evaluate.calibration import calibration_error
from scripts.evaluate.candidates import UNKNOWN, Candidate, of_configuration, of_models
from scripts.evaluate.ensembles import Members
from scripts.evaluate.findings import confusions, disagreements, fitted, sizes
from scripts.evaluate.report import ENSEMBLE, Score, gain, joined
from scripts.evaluate.served import ask
from scripts.evaluate.unseen import check_unseen
from scripts.interval import Interval

INT8 = "INT8"
# Each score, and sentences on them.
Results = tuple[list[Score], list[str]]


@dataclass(frozen=True)
class Together:
    """How predictions become the ensemble's answers.

    Attributes:
        labels: the class names, in order of index.
        weights: of the members that have a say, by name.
        method: how predictions are combined.
        cascade: in which order members are asked, and until when; None for all of them.
        fits_weights: whether weights are fitted to the images, and described.
    """

    labels: tuple[str, ...]
    weights: Mapping[str, float]
    method: Method
    cascade: CascadeSettings | None = None
    fits_weights: bool = False

    @classmethod
    def of(
        cls, config: EnsembleConfig, agreed: EnsembleSignature, method: Method | None = None, fits: bool = False
    ) -> Self:
        """Read how a configuration combines its members, or take another method."""
        weights = {name: (config.combiner.weights or config.weights).get(name, 0.0) for name in config.weights}
        return cls(agreed.labels, weights, method or config.combiner.method, config.ensemble.cascade, fits)


def repository(
    root: Path, names: Sequence[str], dataset: Dataset, method: Method = "mean", fits: bool = False
) -> Results:
    """Measure every version of models, and an ensemble for float and for int8 if every model has such a version.

    All models of the repository are measured unless some are named; the ensemble combines them with equal weights.

    Returns:
        The models' scores, then the ensembles', and a sentence on each ensemble.

    Raises:
        ScriptError: there are no models, classes of the dataset or of two models differ, or no weights can be fitted.
        ModelError: a model is unknown or damaged.
    """
    if not names and not root.is_dir():
        raise ScriptError(f"there is no folder {root.absolute()}; name the models' by --repository")
    names = names or sorted(entry.name for entry in root.iterdir() if versions(root, entry.name))
    # Of a model that isn't there, `find` says which there are.
    models = [
        find(root, name, version) for name in names for version in versions(root, name) or [find(root, name).version]
    ]
    if not models:
        raise ScriptError(f"{root} holds no models; make one with ensemble prepare")
    truth_of(models, dataset)
    together = Together(models[0].labels or (), dict.fromkeys(names, 1.0), method, fits_weights=fits)
    return measured(of_models(models), together, dataset)


def served(
    config: EnsembleConfig,
    agreed: EnsembleSignature,
    dataset: Dataset,
    method: Method | None = None,
    fits: bool = False,
) -> Results:
    """Measure what a configuration serves, combined as it says or by another method, and the members' other versions.

    Returns:
        As `repository`, and sentences on sizes, confusions and disagreements.

    Raises:
        ScriptError: the dataset has other classes than the members, or no weights can be fitted.
        ConfigurationError: a member can't run.
    """
    together = Together.of(config, agreed, method, fits)
    scores, sentences = measured(of_configuration(config, agreed), together, dataset)
    return scores, [*sizes(config, agreed, dataset), *sentences]


def measured(candidates: Sequence[Candidate], together: Together, dataset: Dataset) -> Results:
    """Measure candidates and the ensembles that they make; see `selections`."""
    labels = indices(dataset, together.labels, "the models")
    if together.fits_weights:
        _check_fits(candidates, together, dataset)
    outputs = predictions(candidates, dataset)
    scores, ensembles = _scores(candidates, outputs, labels), list[Score]()
    sentences, findings = list[str](), list[str]()
    for rows in selections(candidates, list(together.weights)):
        parts, chosen = [scores[row] for row in rows.values()], {name: outputs[row] for name, row in rows.items()}
        members = Members(chosen, labels, together.weights, dict.fromkeys(rows, 1.0), together.method)
        combined = members.combined(list(chosen))
        answers, sure = combined.argmax(axis=1), combined.max(axis=1)
        if (cascade := together.cascade) is not None:
            walk = members.walk(cascade.order, cascade.exit_at)
            answers, sure = walk.answers, walk.sure
            alone = f"answers {walk.stops[0]:.1%} of the images by {cascade.order[0]} alone"
            sentences.append(f"{joined(parts)} ensemble: the cascade {alone}.")
        if not findings:
            findings = [
                *confusions(answers, labels, together.labels),
                *disagreements(members, answers, together.labels, dataset),
            ]
        if len(rows) < 2:
            continue
        best = max(rows.values(), key=lambda row: scores[row].top1)
        ensembles.append(_score(ENSEMBLE, joined(parts), sure, answers == labels))
        difference = Interval.paired((answers == labels) - hits(outputs[best], labels))
        if all(candidates[row].is_served for row in rows.values()):
            members_served = ", ".join(f"{score.name} {score.version}" for score in parts)
            sentences.append(f"The configuration serves the {joined(parts)} ensemble: {members_served}.")
        sentences.append(gain(ensembles[-1], parts, difference))
        if together.fits_weights:
            sentences.append(f"{joined(parts)} ensemble: {fitted(members)}")
    return [*scores, *ensembles], [*sentences, *findings]


def _check_fits(candidates: Sequence[Candidate], together: Together, dataset: Dataset) -> None:
    """Raise ScriptError if weights can't be fitted to these images."""
    if together.method != "mean":
        raise ScriptError(f"weights are fitted for the method mean, not for {together.method}; name it by --method")
    if together.cascade is not None:
        raise ScriptError(
            "the thresholds of a cascade were chosen for the weights that it has; to fit weights, name its members by "
            "--members, and choose the thresholds again with these weights"
        )
    if len(together.weights) < 2:
        raise ScriptError("weights are fitted to two members or more")
    for model in {each.name: each.model for each in candidates}.values():
        if model is not None:
            check_unseen(model, dataset)


def selections(candidates: Sequence[Candidate], names: Sequence[str]) -> list[dict[str, int]]:
    """Select the versions that make an ensemble, positions by name: the served ones, the float ones, the int8 ones.

    Those of a kind are the highest of each model; where a model has none of it, there is no such ensemble.
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


def running(url: str, config: EnsembleConfig, dataset: Dataset, connections: int) -> Results:
    """Measure a running server: the members that it serves, and its ensemble.

    Returns:
        As `repository`; the precision is `unknown` for models that are not in the configured repository.

    Raises:
        ScriptError: see `scripts.evaluate.served.ask`.
    """
    answers = ask(url, dataset, connections)
    members = [
        _score(name, _precision(config, name, version), *answers.of(name), version)
        for name, version in answers.versions.items()
        if answers.asked(name) == answers.images
    ]
    ensemble = _score(ENSEMBLE, joined(members), *answers.of(None))
    sentences = [gain(ensemble, members)] if len(members) == len(answers.versions) else []
    sentences += [
        f"The cascade asked {name} about {100 * answers.asked(name) / answers.images:.1f} % of the images."
        for name in answers.versions
        if answers.asked(name) < answers.images
    ]
    return [*members, ensemble], sentences


def truth_of(models: Sequence[Model], dataset: Dataset) -> Truth:
    """Find the class of every image by the labels that all models share; raises ScriptError if they differ."""
    labels = truth(dataset, models[0])
    if other := [model.name for model in models if model.labels != models[0].labels]:
        raise ScriptError(f"models {models[0].name!r} and {other[0]!r} have different labels; name one by --members")
    return labels


def _scores(candidates: Sequence[Candidate], outputs: Sequence[Probabilities], labels: Truth) -> list[Score]:
    return [
        _score(each.name, each.precision, output.max(axis=1), output.argmax(axis=1) == labels, each.version)
        for each, output in zip(candidates, outputs, strict=True)
    ]


def _score(
    name: str, precision: str, sure: Probabilities, right: NDArray[np.bool_], version: int | None = None
) -> Score:
    """Score answers by how probable they are, and whether they are right, both [N]."""
    top1 = 100 * int(right.sum()) / len(right)
    return Score(name, precision, top1, len(right), version, calibration_error(sure, right))


def _precision(config: EnsembleConfig, name: str, version: int) -> str:
    model = next((member.model_name for member in config.members if member.name == name), name)
    try:
        return precision(open_repository(config.model_repository).find(model, version))
    except ModelError:
        return UNKNOWN

"""Measures top-1 of each member in each version, float and int8, and of the ensembles.

    ensemble evaluate --data test.zip --markdown accuracy.md --json accuracy.json --plot accuracy.svg
    ensemble evaluate --data test.zip --url http://127.0.0.1:8000

Without `--url` the models of the repository run in this process, with the server's own decoding, prediction and
combination. With it, a running server answers, and only the versions that it serves are measured. Top-1 is in percent
everywhere, with its 95 % interval. `--plot` needs the `plot` extra (Matplotlib).

    ensemble evaluate --data train.zip --hold-out 5000 --repository tried --members a-1 a-2 --against b-1 b-2

compares runs of two recipes, on the images that `ensemble train --hold-out` has left out: the difference of the means,
with an interval that is paired by image.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from rich.console import Console

from deployments.combiner import Method, combine
from deployments.contract.payload import Probabilities
from models.errors import ModelError
from models.network import precision
from models.repository import DEFAULT_ROOT, Model, find, versions
from scripts.dataset import Dataset
from scripts.errors import ScriptError, check_writable, positive, told_in_one_line
from scripts.evaluate.accuracy import Truth, hits, predict, top1, truth
from scripts.evaluate.report import ENSEMBLE, Score, gain, markdown, paired, plot, table, to_json
from scripts.evaluate.served import ask
from scripts.interval import Interval

UNKNOWN = "unknown"

Results = tuple[list[Score], list[str]]


def evaluate(repository: Path, names: Sequence[str], dataset: Dataset, method: Method = "mean") -> Results:
    """Measure every version of the members, and an ensemble for float and for int8 if every member has one.

    Args:
        repository: the root of the model repository.
        names: the members; none for all that are there.
        dataset: the images and their classes.
        method: how `deployments.combiner` combines them, with equal weights.

    Returns:
        The members' scores, then the ensembles'; and a sentence on each ensemble.

    Raises:
        ScriptError: no models, or the classes of the dataset or of two members differ.
        ModelError: a model is unknown or damaged.
    """
    models = [
        find(repository, name, version) for name in names or _all(repository) for version in _of(repository, name)
    ]
    if not models:
        raise ScriptError(f"{repository} holds no models; make one with ensemble train or ensemble prepare")
    labels = _truth(models, dataset)
    outputs = predict(models, dataset)
    scores = _scores(models, outputs, labels)
    ensembles, sentences = [], []
    for quantized in (False, True):
        # The versions ascend, so that the highest of a kind stays.
        rows = {score.name: row for row, score in enumerate(scores) if (score.precision == "INT8") == quantized}
        if len(rows) < max(2, len({model.name for model in models})):
            continue
        combined = combine([outputs[row] for row in rows.values()], [1.0] * len(rows), method)
        members = [scores[row] for row in rows.values()]
        ensemble = Score(ENSEMBLE, _joined(members), top1(combined, labels), len(dataset))
        ensembles.append(ensemble)
        best = max(rows.values(), key=lambda row: scores[row].top1)
        difference = Interval.paired(hits(combined, labels) - hits(outputs[best], labels))
        sentences.append(gain(ensemble, members, difference))
    return [*scores, *ensembles], sentences


def compare(repository: Path, names: Sequence[str], others: Sequence[str], dataset: Dataset) -> Results:
    """Measure two groups of models, in the highest version of each, and how the groups differ.

    Args:
        repository: the root of the model repository.
        names: of the models of one group.
        others: of those of the other.
        dataset: the images and their classes.

    Returns:
        Every model's score, and a sentence on the difference of the means.

    Raises:
        ScriptError: as `evaluate`.
        ModelError: a model is unknown or damaged.
    """
    models = [find(repository, name) for name in (*names, *others)]
    labels = _truth(models, dataset)
    outputs = predict(models, dataset)
    right = [hits(output, labels) for output in outputs]
    difference = Interval.paired(np.mean(right[: len(names)], axis=0) - np.mean(right[len(names) :], axis=0))
    told = f"{', '.join(names)} against {', '.join(others)}: {difference.mean:+.2f} points of top-1 in the mean"
    return _scores(models, outputs, labels), [f"{told} ({paired(difference)})"]


def _scores(models: Sequence[Model], outputs: Sequence[Probabilities], labels: Truth) -> list[Score]:
    return [
        Score(model.name, precision(model), top1(output, labels), len(labels), model.version)
        for model, output in zip(models, outputs, strict=True)
    ]


def _truth(models: Sequence[Model], dataset: Dataset) -> Truth:
    """The class of every image, by the labels that all the models have."""
    labels = truth(dataset, models[0])
    if other := [model.name for model in models if model.labels != models[0].labels]:
        raise ScriptError(f"members {models[0].name!r} and {other[0]!r} have different labels; name one by --members")
    return labels


def evaluate_served(url: str, repository: Path, dataset: Dataset, connections: int) -> Results:
    """Measure a running server: the members it serves, and its ensemble.

    Args:
        url: the server's root.
        repository: where it has its models, to look up their precision.
        dataset: the images and their classes.
        connections: requests in flight at a time.

    Returns:
        As `evaluate`; the precision is `unknown` for models that are not in the repository.

    Raises:
        ScriptError: see `scripts.served.ask`.
    """
    answers = ask(url, dataset, connections)
    shares = {name: 100 * hits / answers.images for name, hits in answers.hits.items()}
    members = [
        Score(name, _precision_of(repository, name, version), shares[name], answers.images, version)
        for name, version in answers.versions.items()
        if answers.asked[name] == answers.images
    ]
    ensemble = Score(ENSEMBLE, _joined(members), shares[None], answers.images)
    sentences = [gain(ensemble, members)] if len(members) == len(answers.versions) else []
    sentences += [
        f"The cascade asked {name} of {100 * count / answers.images:.1f} % of the images."
        for name, count in answers.asked.items()
        if count < answers.images
    ]
    return [*members, ensemble], sentences


def default_data() -> Path | None:
    """CIFAR-10's test set below `$ENSEMBLE_DATA`, if that is set."""
    root = os.environ.get("ENSEMBLE_DATA")
    return Path(root) / "cifar10" / "test.zip" if root else None


def _precision_of(repository: Path, name: str, version: int) -> str:
    try:
        return precision(find(repository, name, version))
    except ModelError:
        return UNKNOWN


def _joined(members: Sequence[Score]) -> str:
    return "+".join(dict.fromkeys(score.precision for score in members))


def _all(repository: Path) -> list[str]:
    if not repository.is_dir():
        raise ScriptError(f"there is no model repository at {repository}")
    return sorted(entry.name for entry in repository.iterdir() if versions(repository, entry.name))


def _of(repository: Path, name: str) -> list[int]:
    # A model that isn't there: `find` says which there are.
    return versions(repository, name) or [find(repository, name).version]


def main() -> None:
    """Parse the command line, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=default_data(),
        help="zip or folder of <class>/*.jpg (default: $ENSEMBLE_DATA/cifar10/test.zip)",
    )
    parser.add_argument("--members", nargs="+", default=[], metavar="NAME", help="default: all of the repository")
    parser.add_argument("--against", nargs="+", default=[], metavar="NAME", help="compare the members with these")
    parser.add_argument("--hold-out", type=positive, metavar="N", help="judge by the images that training leaves out")
    parser.add_argument("--repository", type=Path, default=DEFAULT_ROOT, help="default: the models in the box")
    parser.add_argument("--method", choices=get_args(Method), help="how the ensembles combine (default: mean)")
    parser.add_argument("--url", help="measure this server instead, e.g. http://127.0.0.1:8000")
    parser.add_argument("--connections", type=positive, default=16, help="requests in flight, with --url (default: 16)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a list of name, precision, top1 (%%), images")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a bar chart, .svg or .png")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data is required where ENSEMBLE_DATA is not set")
    if args.url and (args.members or args.method or args.against):
        parser.error("--members, --against and --method are the server's with --url")
    if args.against and (not args.members or args.method):
        parser.error("--against compares --members, each by itself")
    check_writable(parser, args.markdown, args.json, args.plot)
    with told_in_one_line():
        dataset = Dataset.open(args.data)
        if args.hold_out:
            dataset = dataset.hold_out(args.hold_out)[1] or dataset
        if args.against:
            scores, sentences = compare(args.repository, args.members, args.against, dataset)
        elif args.url:
            scores, sentences = evaluate_served(args.url, args.repository, dataset, args.connections)
        else:
            scores, sentences = evaluate(args.repository, args.members, dataset, args.method or "mean")
        console = Console()
        console.print(table(scores))
        for sentence in sentences:
            console.print(sentence, highlight=False)
        if args.markdown:
            args.markdown.write_text(markdown(scores, sentences), encoding="utf-8")
        if args.json:
            args.json.write_text(to_json(scores), encoding="utf-8")
        if args.plot:
            plot(scores, args.plot)


if __name__ == "__main__":
    main()

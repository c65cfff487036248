"""Chooses a cascade's order and thresholds on one half of labelled images, and judges them on the other.

    ensemble tune-cascade --data images.zip --loss 0.1
    ensemble tune-cascade --data images.zip --order resnet densenet      # thresholds alone
    ensemble tune-cascade --data images.zip --members gate resnet densenet --gates gate --json cascade.json
    ensemble tune-cascade --data train.zip --hold-out 2500     # the images that training left out

The members' predictions come from the server's own decoding, prediction and combination. The cheapest cascade wins that
loses at most `--loss` points of top-1 against all members together; a member costs the CPU time of its inference on
this machine. Take images that no member was trained on: 600 labelled images can show a loss of 1 point, 1,200 a loss of
0.5 points, and 6,000 a loss of 0.1 points. With fewer images the command chooses as well, and prints the largest loss
that they allow. Prints the lines for the configuration, with the versions of the models that the thresholds belong to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method, known
from deployments.repository.repository import Model, find
from scripts.dataset import Dataset, default_data
from scripts.errors import ScriptError, errors_in_one_line, positive, zero_or_more
from scripts.evaluate.accuracy import predict
from scripts.evaluate.cost import costs
from scripts.evaluate.ensembles import Members
from scripts.evaluate.measure import truth_of
from scripts.evaluate.unseen import check_unseen
from scripts.flags import described
from scripts.interval import Interval
from scripts.repository import add_repository
from scripts.results import add_files, check_files, write_files
from scripts.tune_cascade.search import Choice, check_count, choose, halves

# Where none of so many images is lost, the loss of all images is at most 3 / images at 95 % (the rule of three).
RULE_OF_THREE = 3


def members_of(models: Sequence[Model], gates: Sequence[str], dataset: Dataset, method: Method) -> Members:
    """Collect the models' predictions for a dataset, and print what an inference of each costs.

    Raises:
        ScriptError: labels differ, a gate is no member, every member is a gate, or there are too few or too many.
    """
    labels = truth_of(models, dataset)
    names = [model.name for model in models]
    if unknown := sorted(set(gates) - set(names)):
        raise ScriptError(f"--gates: {unknown[0]!r} is none of the members {names}")
    if set(gates) == set(names):
        raise ScriptError("--gates: a member that is no gate is needed to answer")
    check_count(len(models))
    measured = dict(zip(names, costs(models), strict=True))
    for name, cost in measured.items():
        print(f"{name}: {cost}")
    scores = dict(zip(names, predict(models, dataset), strict=True))
    weights = {name: 0.0 if name in gates else 1.0 for name in names}
    return Members(scores, labels, weights, {name: cost.median for name, cost in measured.items()}, method)


def report(
    members: Members, choosing: NDArray[np.bool_], choice: Choice, versions: Mapping[str, int]
) -> dict[str, Any]:
    """Print what a choice does to the images that had no part in it, and what to write into the configuration."""
    judged = members.part(~choosing)
    walk, full, labels = judged.walk(choice.order, choice.exit_at), judged.full(), judged.labels
    hits, full_hits = Interval.share(walk.answers == labels), Interval.share(full == labels)
    difference = Interval.paired((walk.answers == labels).astype(float) - (full == labels))
    for name, scores in judged.scores.items():
        print(f"{name}: top-1 {Interval.share(scores.argmax(axis=1) == labels)}")
    print(f"all together: top-1 {full_hits}")
    print(
        f"the cascade: top-1 {hits}, {difference.mean:+.2f} points "
        f"({difference.low:+.2f} to {difference.high:+.2f}, paired) at {walk.cost / sum(judged.costs.values()):.2f} "
        "of the inference"
    )
    print(f"so the cascade loses at most {-difference.low:.2f} points")
    print(f"answered otherwise than by all together: {Interval.share(walk.answers != full)}")
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(choice.order, walk.stops, strict=True))
    print(f"the last one asked: {shares}")
    print(f"chosen on {choosing.sum():,} images, judged on {(~choosing).sum():,} others; intervals are of 95 %\n")
    chosen_with = ", ".join(f"{name}: {versions[name]}" for name in choice.order)
    print(
        f"ensemble: {{cascade: {{order: [{', '.join(choice.order)}], exit_at: {list(choice.exit_at)}, "
        f"versions: {{{chosen_with}}}}}}}"
    )
    if not all(members.weights.values()) or members.method != "mean":
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in members.weights.items())
        print(f"combiner: {{method: {members.method}, weights: {{{weights}}}}}")
    return {
        **asdict(choice),
        "versions": dict(versions),
        "top1": asdict(hits),
        "full_top1": asdict(full_hits),
        "difference": asdict(difference),
        "stops": dict(zip(choice.order, walk.stops, strict=True)),
        "costs_ms": dict(judged.costs),
        "images": {"chosen_on": int(choosing.sum()), "judged_on": int((~choosing).sum())},
    }


def resolution(choosing: int, judging: int, most_lost: float) -> str:
    """State how small a loss, points, the images can show, and how many images would show the allowed loss."""
    shown = 100 * RULE_OF_THREE / judging
    sentence = (
        f"{choosing:,} images choose, {judging:,} others judge, and can show a loss of {shown:.2g} points or more"
    )
    if not 0 < most_lost < shown:
        return sentence
    wanted = 2 * math.ceil(100 * RULE_OF_THREE / most_lost)
    return f"{sentence}; --loss {most_lost:g} needs {wanted:,} images in all"


def main() -> None:
    """Parse the command line, choose and report."""
    parser = described(__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=default_data(),
        metavar="PATH",
        help="labelled images, <class>/*.jpg, folder or zip file",
    )
    parser.add_argument("--hold-out", type=positive, metavar="N", help="take the images that training leaves out")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--members", nargs="+", default=["resnet", "densenet"], metavar="NAME")
    which.add_argument("--order", nargs="+", metavar="NAME", help="the members, to be asked in this order")
    parser.add_argument(
        "--gates",
        nargs="+",
        default=[],
        metavar="NAME",
        help="members of weight 0, which are called first and not combined",
    )
    parser.add_argument(
        "--loss", type=zero_or_more, default=0.1, metavar="POINTS", help="most points of top-1 to lose; default: 0.1"
    )
    parser.add_argument("--method", type=known, default="mean")
    add_repository(parser)
    add_files(parser, "json")
    args = parser.parse_args()
    if args.data is None:
        parser.error("name the images by --data")
    check_files(parser, args)
    with errors_in_one_line():
        dataset = Dataset.open(args.data).held_out(args.hold_out)
        choosing = halves(dataset)
        print(resolution(int(choosing.sum()), int((~choosing).sum()), args.loss))
        models = [find(args.repository, name) for name in dict.fromkeys(args.order or args.members)]
        for model in models:
            check_unseen(model, dataset)
        members = members_of(models, args.gates, dataset, args.method)
        choice = choose(members.part(choosing), args.loss, args.order)
        versions = {model.name: model.version for model in models}
        write_files(args, None, report(members, choosing, choice, versions))


if __name__ == "__main__":
    main()

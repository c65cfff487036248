"""Chooses a cascade's order and thresholds on one half of labelled images, and judges them on the other."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method
from deployments.repository.repository import Model, find
from ensemble_models.cascades import Choice, check_count, choose, ladder
from ensemble_models.dataset import Dataset, truth_of
from ensemble_models.ensembles import Members, method
from ensemble_models.learnt import check_unseen
from ensemble_models.options import (
    POSITIVE,
    Command,
    Number,
    Table,
    data_option,
    file_options,
    option,
    repository_option,
    write_files,
)
from ensemble_models.prediction import measured_predictions, of_models
from ensemble_models.statistics import Interval, Truth, hits, paired
from ensemble_models.subsets import Panel
from ensemble_models.subsets import choose as subset
from scripts.errors import ScriptError

# Where none of so many images is lost, the loss of all images is at most 3 / images at 95 % (the rule of three).
RULE_OF_THREE = 3
# A member that is surely no more points worse than all together is as good.
MOST_WORSE = 0.5


def halves(dataset: Dataset) -> NDArray[np.bool_]:
    """Select the half of the images that chooses, bool [N]: the same ones wherever they lie."""
    _, chosen = dataset.hold_out(len(dataset) // 2)
    if chosen is None:
        raise ScriptError(f"{dataset.path} has one image; half of the images choose and the others judge")
    return np.isin(dataset.names, chosen.names)


def members_of(models: Sequence[Model], gates: Sequence[str], dataset: Dataset, method: Method) -> Members:
    """Collect the models' predictions for a dataset, and what an inference of each costs.

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
    outputs, costs = measured_predictions(of_models(models), dataset)
    measured = {name: cost for name, cost in zip(names, costs, strict=True) if cost is not None}
    weights = {name: 0.0 if name in gates else 1.0 for name in names}
    return Members(dict(zip(names, outputs, strict=True)), labels, weights, measured, method)


def worthwhile(members: Members, choosing: NDArray[np.bool_]) -> Members:
    """Leave out the members without which the others are as good, by the images that choose; print which."""
    chosen = subset(Panel(members.part(choosing)), methods=(members.method,))
    if len(chosen.names) < 2:
        print(f"{chosen.names[0]} by itself is as good as any ensemble; the cascade has all members")
        return members
    if left_out := [name for name in members.scores if name not in chosen.names]:
        print(f"{' + '.join(chosen.names)} is as good without {', '.join(left_out)}; --order names all members")
    return members.only(chosen.names)


def report(
    members: Members, choosing: NDArray[np.bool_], choice: Choice, versions: Mapping[str, int]
) -> dict[str, Any]:
    """Print what a choice does to the images that had no part in it, and what to write into the configuration."""
    judged = members.part(~choosing)
    walk, full, labels = judged.walk(choice.order, choice.exit_at), judged.full(), judged.labels
    hits, full_hits = Interval.share(walk.answers == labels), Interval.share(full == labels)
    difference = Interval.paired((walk.answers == labels).astype(float) - (full == labels))
    last = dict(zip(choice.order, walk.stops, strict=True))
    rows = [
        (name, str(Interval.share(scores.argmax(axis=1) == labels)), f"{judged.costs[name]:.2f}", f"{last[name]:.1%}")
        for name, scores in judged.scores.items()
    ]
    rows.append(("all together", str(full_hits), f"{sum(judged.costs.values()):.2f}", ""))
    rows.append(("the cascade", str(hits), f"{walk.cost:.2f}", ""))
    Table(("member", "top-1 (95 % interval)", "CPU per image, ms", "the last one asked"), rows).show()
    print(f"the cascade against all together: {difference.mean:+.2f} points ({paired(difference)})")
    print(f"so the cascade loses at most {-difference.low:.2f} points")
    print(f"answered otherwise than by all together: {Interval.share(walk.answers != full)}")
    print(f"chosen on {choosing.sum():,} images, judged on {(~choosing).sum():,} others; intervals are of 95 %\n")
    for sentence in cheaper_alone(judged, walk.cost, full):
        print(sentence)
    chosen_with = ", ".join(f"{name}: {versions[name]}" for name in choice.order)
    print("under `ensemble`, beside its `quorum` and other fields:")
    print(
        f"cascade: {{order: [{', '.join(choice.order)}], exit_at: {list(choice.exit_at)}, versions: {{{chosen_with}}}}}"
    )
    rungs = ladder(members, choosing, choice.order)
    if rungs:
        print("in `cascade`, for requests with a `tolerance`; `audit: 0.01` beside it watches the bounds:")
        lines = (", ".join(f"{name}: {value}" for name, value in rung.items()) for rung in rungs)
        print("ladder:\n" + "\n".join(f"- {{{line}}}" for line in lines))
    if not all(members.weights.values()) or members.method != "mean":
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in members.weights.items())
        print(f"combiner: {{method: {members.method}, weights: {{{weights}}}}}")
    return {
        **asdict(choice),
        "versions": dict(versions),
        "ladder": rungs,
        "top1": asdict(hits),
        "full_top1": asdict(full_hits),
        "difference": asdict(difference),
        "stops": last,
        "costs_ms": dict(judged.costs),
        "images": {"chosen_on": int(choosing.sum()), "judged_on": int((~choosing).sum())},
    }


def cheaper_alone(members: Members, cost: float, full: Truth) -> Iterator[str]:
    """Name the members that alone cost no more than the cascade, and are no worse than all together."""
    for name, scores in members.scores.items():
        difference = Interval.paired(hits(scores, members.labels) - (full == members.labels))
        if members.costs[name] <= cost and difference.low > -MOST_WORSE:
            yield (
                f"{name} alone costs {members.costs[name] / cost:.2f} of the cascade, and its top-1 differs from all "
                f"members' by {difference.mean:+.2f} points ({paired(difference)}): serve {name} alone"
            )


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


@click.command("tune-cascade", cls=Command)
@data_option
@option("--hold-out", type=POSITIVE, metavar="N", help="Take the images that training leaves out.")
@option("--members", multiple=True, metavar="NAME...", help="The members; default: resnet densenet.")
@option("--order", multiple=True, metavar="NAME...", help="The members, called in this order.")
@option("--gates", multiple=True, metavar="NAME...", help="Members of weight 0, which are called first, not combined.")
@option("--loss", type=Number(or_zero=True), default=0.1, metavar="POINTS", help="Largest loss of top-1, points.")
@option("--method", type=method, default="mean", help="How predictions are combined.")
@repository_option
@file_options("json")
def main(**given: Any) -> None:
    """Choose a cascade's order and thresholds on one half of labelled images, and judge them on the other.

    ensemble tune-cascade --data images.zip --loss 0.1
    ensemble tune-cascade --data images.zip --order resnet densenet      # thresholds alone
    ensemble tune-cascade --data images.zip --members gate resnet densenet --gates gate --json cascade.json
    ensemble tune-cascade --data train.zip --hold-out 2500     # if `ensemble train --hold-out 2500` trained all members

    A member is left out if the others are as good without it, unless --order names it.

    The members' predictions come from the server's own decoding, prediction and combination. The cheapest cascade
    wins that loses at most `--loss` points of top-1 against all members together; a member costs the CPU time of its
    inference on this machine. Take images that no member was trained on: 600 labelled images can show a loss of 1
    point, 1,200 a loss of 0.5 points, and 6,000 a loss of 0.1 points. With fewer images the command chooses as well,
    and prints how many points the cascade may lose. Prints the lines for the configuration, with the versions of the
    models that the thresholds belong to, and a ladder of thresholds for requests with a `tolerance`.
    """
    args = SimpleNamespace(**given)
    if args.members and args.order:
        raise click.UsageError("--order names the members; leave out --members")
    dataset = Dataset.open(args.data).held_out(args.hold_out)
    choosing = halves(dataset)
    print(resolution(int(choosing.sum()), int((~choosing).sum()), args.loss))
    names = args.order or args.members or ("resnet", "densenet")
    models = [find(args.repository, name) for name in dict.fromkeys(names)]
    for model in models:
        check_unseen(model, dataset)
    members = members_of(models, args.gates, dataset, args.method)
    if not args.order and not args.gates:
        members = worthwhile(members, choosing)
    choice = choose(members.part(choosing), args.loss, args.order)
    versions = {model.name: model.version for model in models if model.name in members.scores}
    write_files(args, None, report(members, choosing, choice, versions))


if __name__ == "__main__":
    main()

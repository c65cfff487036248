"""Chooses a cascade's order and thresholds on one half of labelled images, and judges them on the other."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from deployments.combiner import Method
from deployments.repository.repository import Model, find
from ensemble_models.dataset import Dataset, check_unseen, truth_of
from ensemble_models.ensembles import Members, method, walk
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
# The 95 % quantile of the normal distribution, for a bound on one side.
ONE_SIDED = 1.645
# Costs within 5 % of each other count as equal, because they are measured.
NEARLY = 1.05
# Thresholds tried for each member but the last, by the number of those: together ten thousand at most.
TRIED = {1: 201, 2: 81, 3: 21}
# The log-odds of the lowest and the highest threshold between 0 and 1: the probabilities 0.18 and 0.9991.
LOG_ODDS = (-1.5, 7.0)
# A member that is surely no more points worse than all together is as good.
MOST_WORSE = 0.5
MOST_MEMBERS = len(TRIED) + 1


@dataclass(frozen=True)
class Choice:
    """A cascade: the members in the order in which they are asked, and the thresholds."""

    order: tuple[str, ...]
    exit_at: tuple[float, ...]


def halves(dataset: Dataset) -> NDArray[np.bool_]:
    """Select the half of the images that chooses, bool [N]: the same ones wherever they lie."""
    _, chosen = dataset.hold_out(len(dataset) // 2)
    if chosen is None:
        raise ScriptError(f"{dataset.path} has one image; half of the images choose and the others judge")
    return np.isin(dataset.names, chosen.names)


def choose(members: Members, most_lost: float, order: Sequence[str] | None = None) -> Choice:
    """Find the cheapest cascade within a loss; of cascades that cost nearly the same, the most faithful one.

    The one-sided 95 % bound on images that only the cascade answers wrongly counts. Images that
    a cascade happens to answer right instead do not offset them: of many thresholds, the best one on some
    images has been lucky on them.

    Args:
        members: their predictions for images that judge nothing else.
        most_lost: against all members together, points of top-1.
        order: of the members; None for the best one.

    Raises:
        ScriptError: there are too many members, or too few images to tell.
    """
    check_count(len(members.scores))
    full, labels = members.full(), members.labels
    found: list[tuple[float, int, Choice]] = []
    grid = thresholds(TRIED[len(members.scores) - 1])
    for names in [tuple(order)] if order else orders(members):
        answers, sure = members.steps(names)
        costs = [members.costs[name] for name in names]
        for exit_at in itertools.product(grid.tolist(), repeat=len(names) - 1):
            tried = walk(answers, sure, exit_at, costs)
            if lost(tried.answers == labels, full == labels) <= most_lost:
                others = int((tried.answers != full).sum())
                found.append((tried.cost, others, Choice(names, exit_at)))
    if not found:
        raise ScriptError(f"no cascade loses at most {most_lost} points; allow more by --loss, or give more images")
    cheapest = min(cost for cost, _, _ in found)
    near = [(others, cost, choice) for cost, others, choice in found if cost <= NEARLY * cheapest]
    return min(near, key=lambda each: each[:2])[2]


def thresholds(count: int) -> NDArray[np.float64]:
    """Choose `count` thresholds: 0, 1, and between them probabilities of four decimals, evenly spaced in log-odds.

    Most answers of calibrated members are surer than 0.95, where even steps of probability leave nothing to choose.
    """
    between = 1 / (1 + np.exp(-np.linspace(*LOG_ODDS, count - 2)))
    return np.concatenate([[0.0], between.round(4), [1.0]])


def orders(members: Members) -> Iterator[tuple[str, ...]]:
    """Yield every order that asks members of weight 0 first."""
    for order in itertools.permutations(members.scores):
        gates = [members.weights[name] == 0 for name in order]
        if gates == sorted(gates, reverse=True):
            yield order


def lost(hits: NDArray[np.bool_], full: NDArray[np.bool_]) -> float:
    """Bound the top-1 that a cascade loses, points, at 95 %, on images that all members together answer right."""
    values = (full & ~hits).astype(float)
    return float(100 * (values.mean() + ONE_SIDED * values.std() / np.sqrt(len(values))))


def check_count(members: int) -> None:
    """Raise ScriptError if a cascade can't be chosen for `members` members."""
    if not 2 <= members <= MOST_MEMBERS:
        raise ScriptError(f"a cascade is chosen for 2 to {MOST_MEMBERS} members; name them by --members")


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
    lines = [
        (name, str(Interval.share(scores.argmax(axis=1) == labels)), f"{judged.costs[name]:.2f}", f"{last[name]:.1%}")
        for name, scores in judged.scores.items()
    ]
    lines.append(("all together", str(full_hits), f"{sum(judged.costs.values()):.2f}", ""))
    lines.append(("the cascade", str(hits), f"{walk.cost:.2f}", ""))
    Table(("member", "top-1 (95 % interval)", "CPU per image, ms", "the last one asked"), lines).show()
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
    if not all(members.weights.values()) or members.method != "mean":
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in members.weights.items())
        print(f"combiner: {{method: {members.method}, weights: {{{weights}}}}}")
    return {
        **asdict(choice),
        "versions": dict(versions),
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
    models that the thresholds belong to.
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

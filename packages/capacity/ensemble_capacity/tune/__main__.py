"""Chooses the settings of a configuration that answer the most requests at a p99, and writes them as a configuration.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold placement=inline max_batch_size=8
    ensemble tune --minimize cores --rate 300 --p99-ms 50            # on as few cores as answer so many requests
    ensemble tune my.yaml --p99-ms 50 --data images/ --max-accuracy-loss 0.2

Every candidate is simulated by the profile of `ensemble plan`. The best three are served and loaded, and the best of
these once more: what was measured decides. It is kept beside the output, so that a search that was ended goes on.
`--data` has labelled images, which are sent. With `--max-accuracy-loss`, other versions of the models and other
thresholds of a cascade are tried, too; without it, answers stay what they are. The exit status is 3 if no candidate
reaches the goal; the nearest is written. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from deployments.contract.names import TRANSFORMER
from deployments.cpus import available_cpus
from ensemble_capacity.plan.__main__ import add_profile, only_application, photographs, profile_of
from ensemble_capacity.plan.prediction import in_ms
from ensemble_capacity.plan.profile import Placement, Profile
from ensemble_capacity.tune.candidate import HELD, candidates
from ensemble_capacity.tune.form import AS_CONFIGURED, BATCH, Form, Forms, Versions
from ensemble_capacity.tune.kept import read
from ensemble_capacity.tune.measuring import LONGEST_S, MEASURED, Measuring
from ensemble_capacity.tune.search import Goal, Trial, Tried
from ensemble_capacity.tune.writing import in_minutes, in_p99, in_words, text
from scripts import configuration
from scripts.dataset import Dataset
from scripts.errors import ScriptError, check_writable, errors_in_one_line, number, zero_or_more
from scripts.evaluate.accuracy import sample
from scripts.flags import described
from scripts.results import Table, add_files, check_files, drawing, write_files

SHOWN = 15
# Images of `--data` that are sent.
SENT = 32
NOT_REACHED = 3
HEADINGS = ("settings", "rate, 1/s", "predicted p99, ms", "memory, MB", "answered, 1/s", "measured p99, ms", "goal")


def held(pairs: Sequence[str]) -> dict[str, Any]:
    """The fields of a candidate that the user holds.

    Raises:
        ScriptError: there is no such field, or it has no such value.
    """
    found = {}
    for pair in pairs:
        name, _, given = pair.partition("=")
        if name not in HELD:
            raise ScriptError(f"--hold: there is no {name!r}; there are {', '.join(HELD)}")
        try:
            value = yaml.safe_load(given)
        except yaml.YAMLError:
            value = given
        if not _can_be(name, value, given):
            raise ScriptError(f"--hold: {name} can't be {given!r}")
        found[name] = value
    return found


def _can_be(name: str, value: Any, given: str) -> bool:
    """Whether a field of a candidate can have a value, which the user gave as a text."""
    if name == "placement":
        return value in get_args(Placement)
    if name == "batch_wait_ms":
        return type(value) in {int, float} and 0 <= value < math.inf
    return (type(value) is int and value > 0) or (name in {"threads", "streams"} and given == "null")


def table(tried: Sequence[Tried], goal: Goal, left: int) -> Table:
    """The candidates, the best first."""
    lines = []
    for each in tried:
        seen = ["", ""]
        if each.measured_rate is not None:
            seen = [f"{each.measured_rate:.0f}", in_ms(each.p99_ms)]
        predicted = [f"{each.rate:.0f}", in_ms(each.predicted.p99_ms), f"{each.predicted.memory_mb:.0f}"]
        lines.append([str(each.candidate), *predicted, *seen, "yes" if goal.is_met(each) else "no"])
    notes = [f"{left} more candidates were simulated."] if left else []
    return Table(HEADINGS, lines, words=(0, 6), notes=notes)


def plot(tried: Sequence[Tried], goal: Goal, path: Path) -> None:
    """The p99 of each candidate over the rate at which it was looked at; PNG or SVG by the file's name."""
    with drawing(path, (8, 5)) as [axes]:
        for colour, placement in enumerate(get_args(Placement)):
            own = [each for each in tried if each.candidate.placement == placement and each.measured_rate is None]
            rates, p99s = [each.rate for each in own], [each.predicted.p99_ms for each in own]
            axes.scatter(rates, p99s, s=9, color=f"C{colour}", label=f"predicted, {placement}")
        seen = [each for each in tried if each.measured_rate is not None]
        axes.scatter([each.rate for each in seen], [each.p99_ms for each in seen], color="C3", label="measured")
        axes.axhline(goal.p99_ms, color="grey", linewidth=0.8, label=f"the goal, {goal.p99_ms:g} ms")
        axes.set(xlabel="requests per second", ylabel="p99, ms", title="The highest rate at which each candidate holds")
        axes.legend(frameon=False)


def served_forms(
    args: argparse.Namespace, config: Mapping[str, Any], images: Sequence[bytes]
) -> tuple[list[Form], dict[Versions, Profile]]:
    """What may be served, and a profile of each.

    Raises:
        ScriptError: see `Forms.found` and `profile_of`.
    """
    application = only_application(config)
    ensemble, agreed = configuration.check(application)
    cascade = ensemble.ensemble.cascade
    is_known = cascade is None or args.exits is not None or args.data is None
    exits = args.exits if is_known or cascade is None else [0.0] * (len(cascade.order) - 1)
    own = profile_of(args, config, images, exits)
    profiles: dict[Versions, Profile] = {AS_CONFIGURED.versions: own}

    def costs(versions: Versions) -> dict[str, float]:
        if versions not in profiles:
            other = Form("", versions).config(config)
            profiles[versions] = profile_of(args, other, images, exits, own)
        nodes = profiles[versions].nodes
        return {name: curves[0].at(BATCH)[0] for name, curves in nodes.items() if name != TRANSFORMER}

    if is_known and args.max_accuracy_loss is None:
        return [replace(AS_CONFIGURED, exits=None if exits is None else tuple(exits))], profiles
    forms = Forms(ensemble, agreed, Dataset.open(args.data), args.max_accuracy_loss, costs).found()
    for form in forms:
        costs(form.versions)
    return forms, profiles


def searched(args: argparse.Namespace, trial: Trial, measuring: Measuring) -> list[Tried]:
    """Candidates, the best first; those that are measured are measured.

    Raises:
        ScriptError: a server did not start.
    """
    members = len(only_application(trial.config)["args"]["members"])
    grid = candidates(trial.cores, trial.fixed, members, trial.forms[0])
    about = f"{len(grid)} candidates on {in_words(trial.cores)}, in about {in_minutes(trial.takes_s(grid))}"
    then = "" if args.no_measurement else f"; the best {MEASURED} are then served, in {in_minutes(LONGEST_S)} at most"
    print(f"Simulating {about}{then}.", flush=True)
    tried = trial.best(grid)
    if args.no_measurement or (args.minimize and not trial.goal.is_met(tried[0])):
        return tried
    return measuring.measured(tried)


def fewest(args: argparse.Namespace, trial: Trial, measuring: Measuring) -> tuple[int, list[Tried]]:
    """The fewest cores on which the goal is reached, or all of them, and the candidates for them."""
    for count in range(1, trial.cores):
        tried = searched(args, replace(trial, cores=count), replace(measuring, cores=count))
        if trial.goal.is_met(tried[0]):
            return count, tried
        print(f"Not reached: {in_p99(tried[0].p99_ms)} at {tried[0].rate:.0f} requests/s", flush=True)
    return trial.cores, searched(args, trial, measuring)


def parsed() -> argparse.Namespace:
    """The command line; ends with a usage error if it is wrong."""
    parser = described(__doc__)
    add_profile(parser)
    parser.add_argument(
        "--minimize", choices=["cores"], help="the fewest cores that answer the requests per second of --rate"
    )
    parser.add_argument("--p99-ms", type=number(0), required=True, metavar="MS", help="highest p99, ms")
    parser.add_argument("--rate", type=number(0), metavar="R", help="least requests per second that must be answered")
    names = ", ".join(HELD)
    parser.add_argument(
        "--hold", nargs="+", default=[], metavar="NAME=VALUE", help=f"settings that are not searched: {names}"
    )
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="labelled images to send, <class>/*.jpg, folder or zip file"
    )
    parser.add_argument(
        "--max-accuracy-loss",
        type=zero_or_more,
        metavar="POINTS",
        help="top-1 that other versions and thresholds may lose on --data, at 95 %%; default: answers stay",
    )
    parser.add_argument("--out", type=Path, default=Path("tuned.yaml"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--no-measurement", action="store_true", help="simulate only, as for another machine")
    parser.add_argument("--again", action="store_true", help="repeat earlier measurements")
    add_files(parser, "markdown", "plot")
    args = parser.parse_args()
    check_writable(parser, args.out)
    check_files(parser, args)
    if args.minimize and args.rate is None:
        parser.error("--minimize cores: name the requests per second by --rate")
    if args.max_accuracy_loss is not None and args.data is None:
        parser.error("--max-accuracy-loss: is measured on the images of --data")
    if args.max_accuracy_loss is not None and args.exits is not None:
        parser.error("--exits: with --max-accuracy-loss the images of --data show them")
    if args.again and args.no_measurement:
        parser.error("--again: nothing is measured with --no-measurement")
    if args.cores not in {None, available_cpus()} and not args.no_measurement:
        parser.error("--cores: another machine can't be measured here; add --no-measurement")
    return args


def main() -> None:
    """Parse the command line, search, measure and write."""
    args = parsed()
    with errors_in_one_line():
        config = configuration.read(args.config)
        goal, cores, fixed = Goal(args.p99_ms, args.rate), args.cores or available_cpus(), held(args.hold)
        images = photographs(args)
        if args.data is not None and not args.images:
            images = [encoded for encoded, _ in sample(Dataset.open(args.data), SENT).read()]
        forms, profiles = served_forms(args, config, images)
        # What measures here also loads here.
        trial = Trial(config, profiles, goal, cores, forms, args.clients_here or not args.no_measurement, fixed)
        known = [*images, *(msgspec.json.encode(each) for each in (config, list(profiles.values()), goal))]
        file = args.out.with_suffix(".measured.json")
        enough = goal.rate if args.minimize else None
        measuring = Measuring(config, goal, images, cores, read(file, known, args.again), file, enough)
        if args.minimize:
            cores, tried = fewest(args, trial, measuring)
        else:
            tried = searched(args, trial, measuring)
        shown = table(tried[:SHOWN], goal, max(0, len(tried) - SHOWN))
        shown.show()
        chosen = tried[0]
        machine = profiles[AS_CONFIGURED.versions].machine
        written = text(chosen.candidate.config(config), chosen, goal, machine, cores)
        args.out.write_text(written, encoding="utf-8")
        write_files(args, shown, plot=lambda path: plot(tried, goal, path))
    print(f"Wrote {args.out}, for {in_words(cores)}: ensemble serve {args.out}")
    if not goal.is_met(chosen):
        print(
            f"The goal is not reached: the nearest has {in_p99(chosen.p99_ms)} at {chosen.rate:.0f} requests/s",
            file=sys.stderr,
        )
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

"""Chooses the settings of a configuration that answer the most requests at a p99, and writes them as a configuration.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold placement=inline max_batch_size=8
    ensemble tune --minimize cores --rate 300 --p99-ms 50            # on as few cores as answer so many requests

Every candidate is simulated by the profile of `ensemble plan`, and the best three are served and loaded: what was
measured decides. `--plot front.svg` draws the p99 and the rate of each. It exits by 3 if none reaches the goal, and
writes the nearest. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import yaml

from deployments.cpus import available_cpus
from scripts import configuration
from scripts.errors import ScriptError, check_writable, errors_in_one_line
from scripts.load.arrivals import Arrivals
from scripts.plan.__main__ import add_profile, photographs, profile_of
from scripts.plan.profile import Placement, Profile
from scripts.plan.server import loaded, serving
from scripts.results import Table, add_files, drawing, write_files
from scripts.tune.search import Candidate, Goal, Trial, Tried, candidates, confirmed, ranked
from scripts.tune.writing import in_words, text

MEASURED, SECONDS = 3, 10.0
SHOWN = 15
NOT_REACHED = 3
HEADINGS = ("settings", "rate", "predicted p99, ms", "memory, MB", "answered, 1/s", "measured p99, ms", "goal")


def held(pairs: Sequence[str]) -> dict[str, Any]:
    """The fields of a candidate that the user holds.

    Raises:
        ScriptError: there is no such field, or it has no such value.
    """
    names = [each.name for each in fields(Candidate)]
    found = {}
    for pair in pairs:
        name, _, given = pair.partition("=")
        value = yaml.safe_load(given) if given else None
        if name not in names:
            raise ScriptError(f"--hold: there is no {name!r}; there are {', '.join(names)}")
        is_right = value in {"inline", "separate"} if name == "placement" else isinstance(value, int | float)
        if not is_right and not (name == "threads" and given == "null"):
            raise ScriptError(f"--hold: {name} can't be {given!r}")
        found[name] = value
    return found


def measure(
    best: Sequence[Tried], config: Mapping[str, Any], goal: Goal, images: Sequence[bytes], cores: int
) -> list[Tried]:
    """Serve candidates on so many cores and load them, the best first.

    Raises:
        ScriptError: a server did not start.
    """
    found = []
    for number, each in enumerate(best, 1):
        print(f"Measuring {number} of {len(best)}: {each.candidate}", flush=True)
        with serving(each.candidate.config(config), cores) as url:

            def at(rate: float, url: str = url) -> tuple[float, float]:
                row = loaded(url, images, Arrivals(rate), SECONDS)
                return row.requests_per_s, row.percentiles_ms["p99"] if not row.failed else float("inf")

            found.append(confirmed(each, goal, at))
    return ranked(found, goal)


def table(tried: Sequence[Tried], goal: Goal, left: int) -> Table:
    """The candidates, the best first."""
    lines = []
    for each in tried:
        seen = ["", ""]
        if each.measured_rate is not None:
            seen = [f"{each.measured_rate:.0f}", f"{each.measured_p99_ms:.1f}"]
        predicted = [f"{each.rate:.0f}", f"{each.predicted.p99_ms:.1f}", f"{each.predicted.memory_mb:.0f}"]
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


def searched(
    args: argparse.Namespace, config: Mapping[str, Any], goal: Goal, profile: Profile, cores: int
) -> list[Tried]:
    """Candidates for so many cores, the best first; those that are measured are measured.

    Raises:
        ScriptError: see `held` and `measure`.
    """
    grid = list(candidates(cores, held(args.hold)))
    # What measures here also loads here.
    here = args.clients_here or not args.no_measurement
    then = "" if args.no_measurement else f"; the best {MEASURED} are then served for a minute each"
    print(f"Simulating {len(grid)} candidates on {in_words(cores)}{then}.", flush=True)
    tried = Trial(config, profile, goal, cores, args.exits, here).best(grid)
    if args.no_measurement or (args.minimize and not goal.is_met(tried[0])):
        return tried
    best = [each.at_most(goal.rate) if args.minimize else each for each in tried[:MEASURED]]
    return [*measure(best, config, goal, photographs(args), cores), *tried[MEASURED:]]


def fewest(
    args: argparse.Namespace, config: Mapping[str, Any], goal: Goal, profile: Profile, cores: int
) -> tuple[int, list[Tried]]:
    """The fewest cores on which the goal is reached, or all of them, and the candidates for them."""
    for count in range(1, cores):
        tried = searched(args, config, goal, profile, count)
        if goal.is_met(tried[0]):
            return count, tried
        print(f"Not reached: a p99 of {tried[0].p99_ms:.1f} ms at {tried[0].rate:.0f} requests/s", flush=True)
    return cores, searched(args, config, goal, profile, cores)


def parsed() -> argparse.Namespace:
    """The command line; ends with a usage error if it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profile(parser)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--maximize", choices=["throughput"], default="throughput", help="requests per second")
    wanted.add_argument("--minimize", choices=["cores"], help="that answer the requests per second of --rate")
    parser.add_argument("--p99-ms", type=float, required=True, metavar="MS", help="that must hold")
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second that must be answered, at least")
    parser.add_argument(
        "--hold",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings that are not searched: " + ", ".join(each.name for each in fields(Candidate)),
    )
    parser.add_argument("--out", type=Path, default=Path("tuned.yaml"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--no-measurement", action="store_true", help="trust the simulation; for another machine")
    add_files(parser, "plot")
    args = parser.parse_args()
    check_writable(parser, args.out, args.plot)
    if args.p99_ms <= 0 or (args.rate is not None and args.rate <= 0):
        parser.error("--p99-ms, --rate: must be above 0")
    if args.minimize and args.rate is None:
        parser.error("--minimize cores: name the requests per second by --rate")
    if args.cores not in {None, available_cpus()} and not args.no_measurement:
        parser.error("--cores: another machine can't be measured here; add --no-measurement")
    return args


def main() -> None:
    """Parse the command line, search, measure and write."""
    args = parsed()
    with errors_in_one_line():
        config = configuration.read(args.config)
        goal, cores = Goal(args.p99_ms, args.rate), args.cores or available_cpus()
        profile = profile_of(args, config)
        if args.minimize:
            cores, tried = fewest(args, config, goal, profile, cores)
        else:
            tried = searched(args, config, goal, profile, cores)
        shown = table(tried[:SHOWN], goal, max(0, len(tried) - SHOWN))
        shown.show()
        write_files(args, shown, plot=lambda path: plot(tried, goal, path))
        chosen = tried[0]
        written = text(chosen.candidate.config(config), chosen, goal, profile.machine, cores)
        args.out.write_text(written, encoding="utf-8")
    print(f"Wrote {args.out}, for {in_words(cores)}: ensemble serve {args.out}")
    if not goal.is_met(chosen):
        print(
            f"The goal is not reached: the nearest has a p99 of {chosen.p99_ms:.1f} ms at {chosen.rate:.0f} requests/s",
            file=sys.stderr,
        )
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

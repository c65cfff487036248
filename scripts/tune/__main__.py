"""Chooses the settings of a configuration that answer the most requests at a p99, and writes them as a configuration.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold placement=inline max_batch_size=8

Every candidate is simulated by the profile of `ensemble plan`, and the best three are served and loaded: what was
measured decides. It exits by 3 if none reaches the goal, and writes the nearest. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from deployments.cpus import available_cpus
from scripts import configuration
from scripts.errors import ScriptError, check_writable, errors_in_one_line
from scripts.load.arrivals import Arrivals
from scripts.plan.__main__ import add_profile, photographs, profile_of
from scripts.plan.server import loaded, serving
from scripts.results import Table
from scripts.tune.search import Candidate, Goal, Trial, Tried, candidates, confirmed, ranked
from scripts.tune.writing import text

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


def measure(best: Sequence[Tried], config: Mapping[str, Any], goal: Goal, images: Sequence[bytes]) -> list[Tried]:
    """Serve and load candidates, the best first.

    Raises:
        ScriptError: a server did not start.
    """
    found = []
    for number, each in enumerate(best, 1):
        print(f"Measuring {number} of {len(best)}: {each.candidate}", flush=True)
        with serving(each.candidate.config(config)) as url:

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


def main() -> None:
    """Parse the command line, search, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_profile(parser)
    parser.add_argument("--maximize", choices=["throughput"], default="throughput", help="what is wanted")
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
    args = parser.parse_args()
    check_writable(parser, args.out)
    if args.p99_ms <= 0 or (args.rate is not None and args.rate <= 0):
        parser.error("--p99-ms, --rate: must be above 0")
    if args.cores not in {None, available_cpus()} and not args.no_measurement:
        parser.error("--cores: another machine can't be measured here; add --no-measurement")
    with errors_in_one_line():
        config = configuration.read(args.config)
        goal, cores = Goal(args.p99_ms, args.rate), args.cores or available_cpus()
        grid = list(candidates(cores, held(args.hold)))
        profile = profile_of(args, config)
        # What measures here also loads here.
        here = args.clients_here or not args.no_measurement
        then = "" if args.no_measurement else f"; the best {MEASURED} are then served for a minute each"
        print(f"Simulating {len(grid)} candidates{then}.", flush=True)
        tried = Trial(config, profile, goal, cores, args.exits, here).best(grid)
        if not args.no_measurement:
            tried = [*measure(tried[:MEASURED], config, goal, photographs(args)), *tried[MEASURED:]]
        table(tried[:SHOWN], goal, max(0, len(tried) - SHOWN)).show()
        chosen = tried[0]
        args.out.write_text(text(chosen.candidate.config(config), chosen, goal, profile.machine), encoding="utf-8")
    print(f"Wrote {args.out}: ensemble serve {args.out}")
    if not goal.is_met(chosen):
        print(
            f"The goal is not reached: the nearest has a p99 of {chosen.p99_ms:.1f} ms at {chosen.rate:.0f} requests/s",
            file=sys.stderr,
        )
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

"""Chooses the settings with which a configuration answers the most requests at a p99, and writes them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import msgspec
import yaml

from deployments.cpus import available_cpus
from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.load.search import CLOSE
from ensemble_capacity.plan.profile import cpu, digest
from ensemble_capacity.serving import only_application, read
from ensemble_capacity.tune import journal as journals
from ensemble_capacity.tune.placements import Placement
from ensemble_capacity.tune.search import HELD, Candidate, Goal, Search, Tried
from ensemble_models.options import FILE, POSITIVE, Command, Number, OutputFile, Table, option
from scripts import configuration
from scripts.shipped import shipped

NOT_REACHED, NOT_MORE = 3, f"not {100 * CLOSE:g} % more"
HEADINGS = ("settings", "sent, 1/s", "answered, 1/s", "p99, ms", "goal")


class HeldType(click.ParamType[Any]):
    """A field of a candidate that the user holds, as `NAME=VALUE`."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        name, _, given = str(value).partition("=")
        if name not in HELD:
            self.fail(f"there is no {name!r}; there are {', '.join(HELD)}", param, ctx)
        try:
            found = yaml.safe_load(given)
        except yaml.YAMLError:
            found = given
        if not _can_be(name, found, given):
            self.fail(f"{name} can't be {given!r}", param, ctx)
        return name, found


def _can_be(name: str, value: Any, given: str) -> bool:
    """Tell whether a candidate's field can have a value, which the user gave as text."""
    if name == "placement":
        return value in get_args(Placement)
    if name == "batch_wait_ms":
        return type(value) in {int, float} and 0 <= value < math.inf
    return (type(value) is int and value > 0) or (name == "threads" and given == "null")


def on_cores(count: int) -> str:
    """Write `1 core`, or `2 cores`."""
    return "1 core" if count == 1 else f"{count} cores"


def milliseconds(value: float) -> str:
    """Write a p99, or `without end` where requests failed."""
    return "without end" if math.isinf(value) else f"{value:.1f}"


def outcome(tried: Tried) -> str:
    """Write the rate and the p99 of a candidate."""
    p99 = milliseconds(tried.p99_ms)
    return f"{tried.answered:.0f} requests/s at a p99 {p99 if math.isinf(tried.p99_ms) else f'of {p99} ms'}"


def table(tried: Sequence[Tried], goal: Goal) -> Table:
    """Make a table of the candidates, the best first."""
    lines = [
        [
            str(each.candidate),
            f"{each.rate:.1f}",
            f"{each.answered:.1f}",
            milliseconds(each.p99_ms),
            "yes" if each.meets(goal) else NOT_MORE if each.is_challenge else "no",
        ]
        for each in tried
    ]
    return Table(HEADINGS, lines, words=(0, 4))


def text(config: Mapping[str, Any], chosen: Tried, goal: Goal, cores: int) -> str:
    """Write the file: its purpose, its measurements, and the configuration."""
    lines = [
        f"# Chosen by `ensemble tune` for a p99 of at most {goal.p99_ms:g} ms.",
        *([] if chosen.meets(goal) else ["# The goal is NOT reached: this is the nearest."]),
        f"# {chosen.candidate}.",
        f"# Measured with Poisson arrivals of {chosen.rate:.4g}/s: {outcome(chosen)}.",
        f"# For {on_cores(cores)}; where there are more: taskset -c 0-{cores - 1} ensemble serve FILE",
        f"# Machine: {cpu()}, {datetime.now(UTC):%Y-%m-%d %H:%M UTC}.",
    ]
    return "\n".join([*lines, yaml.safe_dump(dict(config), sort_keys=False, width=120)])


def beside(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Name a model repository in the file's folder as it was named there: relative, so that both can be moved."""
    arguments, folder = only_application(config)["args"], file.resolve().parent
    repository = arguments.get(configuration.REPOSITORY)
    if isinstance(repository, str) and Path(repository).is_relative_to(folder):
        arguments[configuration.REPOSITORY] = str(Path(repository).relative_to(folder))
    return config


def fewest(search: Search, first: Candidate, rate: float) -> tuple[int, list[Tried]]:
    """Find the fewest cores on which the goal is reached, or all of them, and the candidates for them.

    Where the p99 holds at a lower rate, numbers of cores are left out by this rate per core; some of these are tried in
    the end, because more cores may hold more than their share.
    """
    most, count, too_few = search.cores, 1, 0
    while True:
        tried = replace(search, cores=count).best(first)
        if tried[0].meets(search.goal) or count == most:
            break
        print(f"Not reached on {on_cores(count)}: {outcome(tried[0])}", flush=True)
        holds = tried[0].p99_ms <= search.goal.p99_ms
        needed = math.floor(count * rate / max(tried[0].answered, 1.0)) if holds else 0
        first, too_few, count = tried[0].candidate, count, min(most, max(count + 1, needed))
    while tried[0].meets(search.goal) and count - 1 > too_few:
        fewer = replace(search, cores=count - 1).best(tried[0].candidate)
        if not fewer[0].meets(search.goal):
            break
        count, tried = count - 1, fewer
    return count, tried


@click.command("tune", cls=Command)
@click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg.")
@option("--cores", type=POSITIVE, help="Cores to serve on; default: all.")
@option("--minimize", type=click.Choice(["cores"]), help="Find the fewest cores that answer the requests of --rate.")
@option("--p99-ms", type=Number(), required=True, help="Highest p99, ms.")
@option("--rate", type=Number(), help="Requests per second that the server must answer.")
@option("--hold", type=HeldType(), multiple=True, metavar="NAME=VALUE...", help=f"Settings to keep: {', '.join(HELD)}.")
@option("--out", type=OutputFile(), default=Path("tuned.yaml"), help="The configuration that is written.")
@option("--again", is_flag=True, help="Repeat earlier measurements.")
@option("--markdown", type=OutputFile(), help="Write the table.")
def main(**given: Any) -> None:
    """Choose the settings of a configuration that answer the most requests at a p99, and write them.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold placement=inline max_batch_size=8
    ensemble tune --minimize cores --rate 300 --p99-ms 50            # the fewest cores for this rate

    The command serves the configuration with every node in one process, and searches the highest rate that holds. Then
    it changes one setting after the other, and keeps a change that holds 5 % more requests. On two cores that takes
    about a quarter of an hour. The best must hold its rate for a minute in a fresh server. Measurements are kept
    beside the output, so that an interrupted search goes on. No setting changes an answer. The exit status is 3 if no
    candidate reaches the goal; the nearest is written. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    if options.minimize and options.rate is None:
        raise click.UsageError("--minimize cores: name the requests per second by --rate")
    cores = options.cores or available_cpus()
    if cores > available_cpus():
        raise click.UsageError(f"--cores: this machine has {on_cores(available_cpus())}")
    config = read(options.config)
    goal, held = Goal(options.p99_ms, options.rate), dict(options.hold)
    first, images = Candidate.first(config, held), photographs(options.images)
    file = options.out.with_suffix(".measured.json")
    journal = journals.read(file, [digest(config, images).encode(), msgspec.json.encode(goal)], options.again)
    enough = options.rate if options.minimize else math.inf
    search = Search(config, goal, images, cores, journal, file, enough, held)
    cores, tried = fewest(search, first, options.rate) if options.minimize else (cores, search.best(first))
    (shown := table(tried, goal)).show()
    chosen = tried[0]
    written = beside(chosen.candidate.config(config), options.out)
    options.out.write_text(text(written, chosen, goal, cores), encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(shown.markdown(), encoding="utf-8")
    print(f"Wrote {options.out}, for {on_cores(cores)}: ensemble serve {options.out}")
    if not chosen.meets(goal):
        print(f"The goal is not reached: the nearest has {outcome(chosen)}", file=sys.stderr)
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

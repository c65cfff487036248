"""Chooses the settings with which a configuration answers the most requests at a p99, and writes them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import msgspec
import yaml

from deployments.cpus import available_cpus
from deployments.ingress.settings import IngressSettings
from ensemble_capacity.plan.__main__ import only_application, photographs, profile_of, profile_options
from ensemble_capacity.plan.profile import Placement
from ensemble_capacity.tune.candidates import HELD, Goal, Predictions, Tried
from ensemble_capacity.tune.journal import read
from ensemble_capacity.tune.measuring import TAKES_S, Measuring
from ensemble_models.options import Command, Number, OutputFile, option
from ensemble_models.results import Table
from scripts import configuration

SHOWN = 15
NOT_REACHED = 3
HEADINGS = ("settings", "predicted rate, 1/s", "sent, 1/s", "answered, 1/s", "p99, ms", "memory, MB", "goal")
FIELD = re.compile(r"^(?P<indent>[ -]*)(?P<name>\w+): \S.*$")
COMMENTS = {name: field.description for name, field in IngressSettings.model_fields.items()} | {
    "placement": "where the node runs: `inline`, in the ingress' process, or `separate`, in one of its own",
    "threads": "that compute; left out, the member's share of the cores",
    "num_replicas": "processes",
    "streams": "parts of a batch that a member computes at a time; left out, the fastest, measured at the first start",
}


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
    return (type(value) is int and value > 0) or (name in {"threads", "streams"} and given == "null")


def on_cores(count: int) -> str:
    """Write `1 core`, or `2 cores`."""
    return "1 core" if count == 1 else f"{count} cores"


def p99(value_ms: float) -> str:
    """Write `a p99 of 43.9 ms`, or `without end` where requests failed, or more are sent than are answered."""
    return "a p99 without end" if math.isinf(value_ms) else f"a p99 of {value_ms:.1f} ms"


def outcome(tried: Tried) -> str:
    """Write the rate and the p99 that are known of a candidate."""
    return f"{tried.rate if tried.answered is None else tried.answered:.0f} requests/s at {p99(tried.p99_ms)}"


def table(tried: Sequence[Tried], goal: Goal) -> Table:
    """Make a table of the candidates, the best first."""
    lines = []
    for each in tried[:SHOWN]:
        seen = ["", "", f"{each.p99_ms:.1f} predicted"]
        if each.answered is not None:
            latency = "without end" if math.isinf(each.p99_ms) else f"{each.p99_ms:.1f}"
            seen = [f"{each.rate:.1f}", f"{each.answered:.1f}", latency]
        memory = f"{each.predicted.memory_mb:.0f}"
        met = "yes" if each.meets(goal) else "no"
        lines.append([str(each.candidate), f"{each.predicted_rate:.0f}", *seen, memory, met])
    left = len(tried) - SHOWN
    notes = [f"{left} more candidates were predicted."] if left > 0 else []
    return Table(HEADINGS, lines, words=(0, 6), notes=notes)


def text(config: Mapping[str, Any], chosen: Tried, goal: Goal, machine: Mapping[str, str], cores: int) -> str:
    """Write the file: its purpose, its measurements, and the configuration, each field commented once."""
    how = "Predicted" if chosen.answered is None else f"Measured with Poisson arrivals of {chosen.rate:.4g}/s"
    lines = [
        f"# Chosen by `ensemble tune` for a p99 of at most {goal.p99_ms:g} ms.",
        *([] if chosen.meets(goal) else ["# The goal is NOT reached: this is the nearest."]),
        f"# {chosen.candidate}.",
        f"# {how}: {outcome(chosen)}.",
        f"# For {on_cores(cores)}; where there are more: taskset -c 0-{cores - 1} ensemble serve FILE",
        f"# Profile: {machine['cpu']}, {machine['cores']} cores, {machine['date']}.",
    ]
    commented: set[str] = set()
    for line in yaml.safe_dump(dict(config), sort_keys=False, width=120).splitlines():
        found = FIELD.match(line)
        if found is not None and found["name"] in COMMENTS and found["name"] not in commented:
            commented.add(found["name"])
            lines.append(f"{' ' * len(found['indent'])}# {found['name']}: {COMMENTS[found['name']]}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def beside(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Name a model repository in the file's folder as it was named there: relative, so that both can be moved."""
    arguments, folder = only_application(config)["args"], file.resolve().parent
    repository = arguments.get(configuration.REPOSITORY)
    if isinstance(repository, str) and Path(repository).is_relative_to(folder):
        arguments[configuration.REPOSITORY] = str(Path(repository).relative_to(folder))
    return config


def exits_of(options: SimpleNamespace, config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Read the exits of a cascade; where none are given, every image reaches every member."""
    cascade = configuration.check_arguments(only_application(config)).ensemble.cascade
    if options.exits or cascade is None:
        return options.exits or None
    print("Candidates are predicted as if every image reached every member: --exits says how many do.")
    return (0.0,) * (len(cascade.order) - 1)


def searched(options: SimpleNamespace, predictions: Predictions, measuring: Measuring) -> list[Tried]:
    """Predict every candidate and measure the best; the best first.

    Raises:
        ScriptError: a server did not start.
    """
    tried = predictions.ranked()
    print(f"{len(tried)} candidates are predicted on {on_cores(predictions.cores)}.", flush=True)
    if options.no_measurement or (options.minimize and not tried[0].meets(predictions.goal) and predictions.cores > 1):
        return tried
    print(f"The best are served and measured, in about {TAKES_S / 60:.0f} minutes.", flush=True)
    return measuring.best(tried)


def fewest(options: SimpleNamespace, predictions: Predictions, measuring: Measuring) -> tuple[int, list[Tried]]:
    """Find the fewest cores on which the goal is reached, or all of them, and the candidates for them."""
    for count in range(1, predictions.cores):
        tried = searched(options, replace(predictions, cores=count), replace(measuring, cores=count))
        if tried[0].meets(predictions.goal):
            return count, tried
        print(f"Not reached: {outcome(tried[0])}", flush=True)
    return predictions.cores, searched(options, predictions, measuring)


def check(options: SimpleNamespace) -> None:
    """Raise UsageError for options that contradict each other."""
    is_elsewhere = options.cores not in {None, available_cpus()} and not options.no_measurement
    wrong = {
        "--minimize cores: name the requests per second by --rate": options.minimize and options.rate is None,
        "--again: nothing is measured with --no-measurement": options.again and options.no_measurement,
        "--cores: another machine can't be measured here; add --no-measurement": is_elsewhere,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise click.UsageError(message)


@click.command("tune", cls=Command)
@profile_options
@option("--minimize", type=click.Choice(["cores"]), help="Find the fewest cores that answer the requests of --rate.")
@option("--p99-ms", type=Number(), required=True, help="Highest p99, ms.")
@option("--rate", type=Number(), help="Requests per second that the server must answer.")
@option("--hold", type=HeldType(), multiple=True, metavar="NAME=VALUE...", help=f"Settings to keep: {', '.join(HELD)}.")
@option("--out", type=OutputFile(), default=Path("tuned.yaml"), help="The configuration that is written.")
@option("--no-measurement", is_flag=True, help="Predict only, as for another machine.")
@option("--again", is_flag=True, help="Repeat earlier measurements.")
@option("--markdown", type=OutputFile(), help="Write the table.")
def main(**given: Any) -> None:
    """Choose the settings of a configuration that answer the most requests at a p99, and write them.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold placement=inline max_batch_size=8
    ensemble tune --minimize cores --rate 300 --p99-ms 50            # the fewest cores for this rate

    The profile of `ensemble plan` predicts every candidate. The command serves the best six, and searches the highest
    rate that each holds; for the best three it searches to 5 %. The best must hold its rate for a minute in a fresh
    server. Measurements are kept beside the output, so that an interrupted search goes on. No setting changes an
    answer. The exit status is 3 if no candidate reaches the goal; the nearest is written. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    check(options)
    config = configuration.read(options.config)
    goal, cores, fixed = Goal(options.p99_ms, options.rate), options.cores or available_cpus(), dict(options.hold)
    images = photographs(options.images)
    profile = profile_of(options, config, images)
    if noise := profile.noise():
        print(noise)
    # What measures here also loads here.
    here = not options.no_measurement
    predictions = Predictions(config, profile, goal, cores, exits_of(options, config), here, fixed)
    known = [*images, *(msgspec.json.encode(each) for each in (config, profile, goal))]
    file = options.out.with_suffix(".measured.json")
    journal = read(file, known, options.again)
    measuring = Measuring(config, goal, images, cores, journal, file, options.rate if options.minimize else math.inf)
    if options.minimize:
        cores, tried = fewest(options, predictions, measuring)
    else:
        tried = searched(options, predictions, measuring)
    (shown := table(tried, goal)).show()
    chosen = tried[0]
    written = beside(chosen.candidate.config(config), options.out)
    options.out.write_text(text(written, chosen, goal, profile.machine, cores), encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(shown.markdown(), encoding="utf-8")
    print(f"Wrote {options.out}, for {on_cores(cores)}: ensemble serve {options.out}")
    if not chosen.meets(goal):
        print(f"The goal is not reached: the nearest has {outcome(chosen)}", file=sys.stderr)
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

"""Chooses the settings with which a configuration answers the most requests at a p99, and writes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import click
import msgspec
import openvino as ov
import yaml

from deployments.cpus import available_cpus
from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.serving import only_application, read
from ensemble_capacity.tune.search import HELD, Candidate, Search, Tried
from ensemble_models.options import FILE, POSITIVE, Command, Number, OutputFile, Table, option, write_files
from scripts import configuration
from scripts.shipped import shipped

NOT_REACHED = 3
HEADINGS = ("settings", "sent, 1/s", "answered, 1/s", "p99, ms", "p99 holds")


class HeldType(click.ParamType[Any]):
    """A field of a candidate that the user holds, as `NAME=VALUE`."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        name, _, given = str(value).partition("=")
        if name not in HELD:
            self.fail(f"there is no {name!r}; there are {', '.join(HELD)}", param, ctx)
        kind = get_type_hints(Candidate, include_extras=True)[name]
        try:
            return name, msgspec.convert(yaml.safe_load(given), kind)
        except (yaml.YAMLError, msgspec.ValidationError):
            self.fail(f"{name} can't be {given!r}", param, ctx)


def table(tried: Sequence[Tried]) -> Table:
    """Make a table of the candidates, the best first."""
    lines = []
    for each in tried:
        trial = each.trial
        p99 = "without end" if trial.p99_ms == float("inf") else f"{trial.p99_ms:.1f}"
        holds = "yes" if trial.holds else "no"
        lines.append([str(each.candidate), f"{trial.rate:.1f}", f"{trial.answered:.1f}", p99, holds])
    return Table(HEADINGS, lines, words=(0, 4))


def text(config: Mapping[str, Any], chosen: Tried, p99_ms: float, cores: int) -> str:
    """Write the file: its purpose, its measurements, and the configuration."""
    lines = [
        f"# Chosen by `ensemble tune` for a p99 of at most {p99_ms:g} ms.",
        *([] if chosen.trial.holds else ["# The goal is NOT reached: this is the nearest."]),
        f"# {chosen.candidate}.",
        f"# Measured with Poisson arrivals of {chosen.trial.rate:.4g}/s: {chosen.trial}.",
        f"# Cores: {cores}; where there are more: taskset -c 0-{cores - 1} ensemble serve FILE",
        f"# Machine: {ov.Core().get_property('CPU', 'FULL_DEVICE_NAME')}, {datetime.now(UTC):%Y-%m-%d %H:%M UTC}.",
    ]
    return "\n".join([*lines, yaml.safe_dump(dict(config), sort_keys=False, width=120)])


def beside(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Name a model repository in the file's folder as it was named there: relative, so that both can be moved."""
    arguments, folder = only_application(config)["args"], file.resolve().parent
    repository = arguments.get(configuration.REPOSITORY)
    if isinstance(repository, str) and Path(repository).is_relative_to(folder):
        arguments[configuration.REPOSITORY] = str(Path(repository).relative_to(folder))
    return config


@click.command("tune", cls=Command)
@click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg.")
@option("--cores", type=POSITIVE, help="Cores to serve on; default: all.")
@option("--p99-ms", type=Number(), required=True, help="Highest p99, ms.")
@option("--hold", type=HeldType(), multiple=True, metavar="NAME=VALUE...", help=f"Settings to keep: {', '.join(HELD)}.")
@option("--out", type=OutputFile(), default=Path("tuned.yaml"), help="The configuration that is written.")
@option("--markdown", type=OutputFile(), help="Write the table.")
def main(**given: Any) -> None:
    """Choose the settings of a configuration that answer the most requests at a p99, and write them.

    ensemble tune --p99-ms 50                                        # of configs/colocated.yaml, into tuned.yaml
    ensemble tune my.yaml --p99-ms 50 --out fast.yaml --hold replicas=1 max_batch_size=8
    ensemble tune my.yaml --p99-ms 50 --cores 1

    The command serves the configuration with every node in one process, and searches the highest rate that holds. Then
    it changes one setting after the other, and keeps a change that holds 5 % more requests. On two cores that takes
    about a quarter of an hour. The best must hold its rate for a minute in a fresh server. No setting changes an
    answer. The exit status is 3 if no candidate holds the p99; the nearest is written. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    cores = options.cores or available_cpus()
    if cores > available_cpus():
        raise click.UsageError(f"--cores: the number of this machine's cores is {available_cpus()}")
    config = read(options.config)
    held = dict(options.hold)
    search = Search(config, options.p99_ms, photographs(options.images), cores, held)
    tried = search.best(Candidate.first(config, held))
    (shown := table(tried)).show()
    write_files(options, shown)
    chosen = tried[0]
    written = beside(chosen.candidate.config(config), options.out)
    options.out.write_text(text(written, chosen, options.p99_ms, cores), encoding="utf-8")
    print(f"Wrote {options.out}: ensemble serve {options.out}")
    if not chosen.trial.holds:
        print(f"The goal is not reached: the nearest has {chosen.trial}", file=sys.stderr)
        sys.exit(NOT_REACHED)


if __name__ == "__main__":
    main()

"""Repeats experiments of docs/experiments: `ensemble experiments`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import iter_modules

import click

from ensemble_models.options import Command, Number, Table, option
from lab import experiments
from lab.experiments.experiment import Experiment, commits_since
from scripts.errors import ScriptError
from scripts.serve.environment import set_up


def found() -> Iterator[Experiment]:
    """Find the experiments that the modules of this package declare."""
    for module in iter_modules(experiments.__path__, f"{experiments.__name__}."):
        if not module.name.endswith("__main__"):
            yield from (each for each in vars(import_module(module.name)).values() if isinstance(each, Experiment))


EXPERIMENTS = {each.name: each for each in found()}


def check(chosen: Sequence[Experiment]) -> None:
    """Raise ScriptError, before anything starts, for all that is missing."""
    missing = []
    for each in chosen:
        try:
            each.check()
        except ScriptError as err:
            missing.append(f"{each.name}: {err}")
    if missing:
        raise ScriptError("; ".join(missing))


def draw(experiments: Sequence[Experiment]) -> None:
    """Write page and picture of each experiment with a result, and name the experiments without one."""
    lacking = [each.name for each in experiments if each.stored() is None]
    for each in experiments:
        if each.name not in lacking:
            each.draw()
    if lacking:
        print(f"not measured yet, so nothing was drawn: {', '.join(lacking)}")


def listed(experiments: Sequence[Experiment]) -> Table:
    """Make a table of how long each takes, and how old its result is."""
    lines = []
    for each in experiments:
        stored = each.stored()
        told = (
            (stored.date, stored.commit, commits_since(stored.commit), stored.machine) if stored else ("", "", "", "")
        )
        lines.append([each.name, f"{each.minutes:.0f}", *told])
    heads = ["experiment", "minutes", "measured on", "at commit", "commits ago", "machine"]
    return Table(heads, lines, words=range(len(heads)))


@click.command("experiments", cls=Command)
@click.argument("experiment", type=click.Choice(sorted([*EXPERIMENTS, "all", "list", "pages"])))
@option("--seconds", type=Number(), help="Seconds of each load; default: the experiment's.")
@option("--again", is_flag=True, help="Repeat what this commit measured on this machine.")
def main(experiment: str, seconds: float | None, again: bool) -> None:
    """Repeat an experiment of docs/experiments: figures that five documents reported, beside this machine's figures.

    ensemble experiments list                  # how long each takes, and when and at which commit it was measured
    ensemble experiments batches               # one; writes its result, tables and picture in docs/experiments
    ensemble experiments all --seconds 2       # every experiment that this commit has not measured on this machine
    ensemble experiments pages                 # writes tables and pictures anew from the stored results

    An interrupted run resumes where it stopped. Each run prints first how long it will take. A missing package or
    document is named before the first one starts. `all` leaves out what takes more than half an hour: autoscaling,
    replicas, predictions and distillation.
    """
    if experiment == "pages":
        draw(list(EXPERIMENTS.values()))
        return
    if experiment == "list":
        listed(list(EXPERIMENTS.values())).show()
        return
    short = [each for each in EXPERIMENTS.values() if not each.is_long]
    chosen = short if experiment == "all" else [EXPERIMENTS[experiment]]
    check(chosen)
    set_up()
    for each in chosen:
        print(f"{each.name} is there" if not each.run(seconds, again=again) else f"made {each.name}")


if __name__ == "__main__":
    main()

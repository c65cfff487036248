"""Computes what calls cost on machines that are paid by the hour, busy or idle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import click

from ensemble_models.options import POSITIVE, Command, Number, Table, file_options, option, write_files

HOURS_A_MONTH, HOURS_A_YEAR, SECONDS_AN_HOUR, MILLION = 730, 8760, 3600, 1_000_000
HEADINGS = ("instance", "$/hour", "answers, 1/s", "machines", "idle, %", "$ per million calls", "$/month", "$/year")


@dataclass(frozen=True)
class Instance:
    """A machine that is paid by the hour; None for a rate that is not known."""

    name: str
    dollars_per_hour: float
    requests_per_s: float | None = None

    def cost(self, traffic: float, full: float, machines: int | None = None) -> Cost:
        """Compute the cost of real traffic, in requests/s, on `machines` machines, or on as many as it needs."""
        capacity = self.requests_per_s
        needed = 1 if capacity is None else max(1, math.ceil(traffic / (capacity * full)))
        count = machines or needed
        per_hour = self.dollars_per_hour * count
        idle = None if capacity is None else 100 * max(0.0, 1 - traffic / (capacity * count))
        per_million = per_hour / SECONDS_AN_HOUR / traffic * MILLION
        return Cost(self, count, idle, per_million, per_hour * HOURS_A_MONTH, per_hour * HOURS_A_YEAR)


@dataclass(frozen=True)
class Cost:
    """What traffic costs on machines of a kind; `idle` is a share of their time, percent."""

    instance: Instance
    machines: int
    idle: float | None
    per_million: float
    per_month: float
    per_year: float

    def cells(self) -> list[str]:
        """Write a line of the table."""
        given, rate = self.instance, self.instance.requests_per_s
        rates = ["" if rate is None else f"{rate:.1f}", str(self.machines)]
        idle = "" if self.idle is None else f"{self.idle:.1f}"
        dollars = [f"{self.per_million:,.2f}", f"{self.per_month:,.0f}", f"{self.per_year:,.0f}"]
        return [given.name, f"{given.dollars_per_hour:g}", *rates, idle, *dollars]


class InstanceType(click.ParamType[Instance]):
    """A machine as `name:dollars per hour[:requests/s]`."""

    name = "instance"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Instance:
        """See `click.ParamType.convert`."""
        name, _, figures = value.partition(":")
        try:
            values = [float(each) for each in figures.split(":")]
        except ValueError:
            values = []
        if not name or len(values) not in {1, 2} or not all(0 < each < math.inf for each in values):
            self.fail("must be NAME:DOLLARS_PER_HOUR or NAME:DOLLARS_PER_HOUR:REQUESTS_PER_S", param, ctx)
        return Instance(name, *values)


@click.command("cost", cls=Command)
@option(
    "--instance",
    type=InstanceType(),
    multiple=True,
    required=True,
    metavar="NAME:DOLLARS[:RATE]...",
    help="Name, dollars per hour, and requests/s that the machine answers.",
)
@option("--requests-per-s", type=Number(), required=True, help="Requests that come.")
@option("--machines", type=POSITIVE, help="Number of machines; default: as many as the requests need.")
@option("--full", type=Number(below=1), default=0.7, help="Highest share of a machine's rate to use.")
@file_options("json", "markdown")
def main(**given: Any) -> None:
    """Compute what calls cost on machines that are paid by the hour, busy or idle.

    ensemble cost --instance mine:0.19:240 --requests-per-s 40
    ensemble cost --instance small:0.19:240 large:0.68:950 --requests-per-s 400
    ensemble cost --instance gpu:1.306 --machines 30 --requests-per-s 3000

    It starts no server: `ensemble load` and `ensemble plan` report how many requests/s a machine answers. The command
    takes the fewest machines that need at most the share --full of their rate.
    """
    args = SimpleNamespace(**given)
    traffic = args.requests_per_s
    costs = [each.cost(traffic, args.full, args.machines) for each in args.instance]
    title = f"{traffic:.3g} requests/s, {traffic * SECONDS_AN_HOUR * HOURS_A_MONTH / MILLION:.3g} million per month"
    table = Table(HEADINGS, [each.cells() for each in costs], title=title)
    table.show()
    write_files(args, table, costs)


if __name__ == "__main__":
    main()

"""What predictions cost, by what other experiments have measured: per million, per month, and against a price per call.

    ensemble experiments cost --rows docs/benchmarks/zoo.json docs/benchmarks/embedded.json --markdown cost.md

It starts no server. A machine is paid by the hour, whether requests come or not; a function is paid by the call. Prices
are flags: the default is the price of one of the reported machines, and not that of the machine that was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ensemble_capacity.load.machine import Energy
from scripts.errors import ScriptError, errors_in_one_line, number
from scripts.flags import described
from scripts.results import Table, add_files, check_files, write_files
from scripts.shipped import CHECKOUT

HOURS_A_MONTH = 730
MILLION = 1_000_000
FILES = [CHECKOUT / "docs" / "benchmarks" / name for name in ("zoo.json", "embedded.json")]
# Of what a machine can answer at most: with more, requests wait for long when a few come at once.
FULL = 0.7
SHARES = (1.0, 0.3, 0.1)


def per_million(price_per_hour: float, requests_per_s: float, share: float = 1.0) -> float:
    """What a million requests cost on a machine that is paid by the hour.

    Args:
        price_per_hour: of the machine.
        requests_per_s: that it can answer.
        share: of them that come; the machine costs the same when fewer do.
    """
    return price_per_hour / 3600 / (requests_per_s * share) * MILLION


def one_at_a_time(price_per_hour: float, latency_ms: float) -> float:
    """What a million requests cost if each has the machine to itself for its latency."""
    return per_million(price_per_hour, 1000 / latency_ms)


def machines(load: float, requests_per_s: float, full: float = FULL) -> int:
    """How many machines a load in requests/s needs, each used to that share of its rate."""
    return max(1, math.ceil(load / (requests_per_s * full)))


def break_even(price_per_hour: float, per_million_calls: float) -> float:
    """The calls per month from which a machine that is always on costs less than a price per call."""
    return price_per_hour * HOURS_A_MONTH / per_million_calls * MILLION


def price_of_calls(price_per_hour: float, calls: float) -> float:
    """The price of a million calls at which the machine and so many calls per month cost the same."""
    return price_per_hour * HOURS_A_MONTH / calls * MILLION


def saving(before: float, after: float) -> float:
    """The share of a cost that is saved, percent."""
    return 100 * (1 - after / before)


@dataclass(frozen=True)
class Setup:
    """What was measured: a name, and the requests/s that it answers."""

    name: str
    requests_per_s: float


def setups(records: Sequence[Mapping[str, Any]]) -> list[Setup]:
    """What a stored file of `cascade`, `ladder` or `ensemble benchmark` holds; of the latter HTTP and most clients.

    Raises:
        ScriptError: it holds none of them.
    """
    try:
        if "step" in records[0]:
            return [Setup(each["step"], each["requests_per_s"]) for each in records if "error" not in each]
        if "setup" in records[0]:
            return [Setup(_named(each["setup"]), each["requests_per_s"]) for each in records]
        most = max(each["clients"] for each in records)
        chosen = [each for each in records if each["clients"] == most and each["protocol"] == "http"]
        return [Setup(f"{each['system']} {each['placement'] or ''}".strip(), each["requests_per_s"]) for each in chosen]
    except (KeyError, IndexError, TypeError) as err:
        raise ScriptError("its rows are not those of cascade, ladder or `ensemble benchmark`") from err


def _named(setup: Mapping[str, Any]) -> str:
    exits = "" if setup["exit_at"] is None else f", exit at {setup['exit_at']:g}"
    return f"{' and '.join(setup['members'])}{exits}, {setup['precision']}"


def records_of(
    found: Sequence[Setup], source: str, price: float, load: float, per_million_calls: float
) -> list[dict[str, Any]]:
    """What is stored of the setups of a file; savings are counted from the dearest of them, on the same machine."""
    dearest = max(per_million(price, each.requests_per_s) for each in found)
    return [{"source": source, **_record(each, price, load, per_million_calls, dearest)} for each in found]


def _record(setup: Setup, price: float, load: float, per_million_calls: float, dearest: float) -> dict[str, Any]:
    count = machines(load, setup.requests_per_s)
    return {
        "setup": setup.name,
        "requests_per_s": setup.requests_per_s,
        "per_million": [per_million(price, setup.requests_per_s, share) for share in SHARES],
        "saving": saving(dearest, per_million(price, setup.requests_per_s)),
        "machines": count,
        "per_month": count * price * HOURS_A_MONTH,
        "break_even": break_even(price, per_million_calls),
        "joules_can_be_read": _joules_can_be_read(),
    }


def _joules_can_be_read() -> bool:
    try:
        Energy()
    except (OSError, ValueError):
        return False
    return True


def table(records: Sequence[Mapping[str, Any]], load: float) -> Table:
    """What was computed, by its texts."""
    headings = ["setup", "measured by", "requests/s", *(f"$ per million at {share:.0%} load" for share in SHARES)]
    headings += ["saving, %", f"machines for {load:g}/s", "$ per month for them"]
    lines = []
    for each in records:
        costs = [f"{cost:.2f}" for cost in each["per_million"]]
        numbers = [f"{each['saving']:.0f}", str(each["machines"]), f"{each['per_month']:,.0f}"]
        lines.append([each["setup"], each["source"], f"{each['requests_per_s']:.0f}", *costs, *numbers])
    return Table(headings, lines, words=(0, 1), notes=notes(records))


def notes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Break-even and energy, in sentences."""
    calls = records[0]["break_even"] / MILLION
    energy = "Joules: not measured here, because this machine has no RAPL counters that can be read."
    if records[0]["joules_can_be_read"]:
        energy = "Joules: this machine's counters can be read; `ensemble load` shows them per image."
    return [
        f"A machine that is always on costs less than the price per call from {calls:.1f} million calls per month.",
        energy,
    ]


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, compute and report."""
    parser = described(__doc__, "ensemble experiments cost")
    add = parser.add_argument
    add("--rows", type=Path, nargs="+", default=FILES, metavar="JSON", help="what other experiments stored")
    add("--price-per-hour", type=number(0), default=0.538, help="dollars; default: %(default)s")
    add("--per-million-calls", type=number(0), default=52.4, help="dollars; default: %(default)s")
    add("--load", type=number(0), default=1000.0, help="requests/s that machines are counted for")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    with errors_in_one_line():
        records = []
        for file in args.rows:
            try:
                found = setups(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, ScriptError) as err:
                raise ScriptError(f"{file}: {err}") from err
            records += records_of(found, file.stem, args.price_per_hour, args.load, args.per_million_calls)
        (made := table(records, args.load)).show()
        write_files(args, made, records)

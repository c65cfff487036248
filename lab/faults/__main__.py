"""Injects faults into running servers under load, and reports what their clients saw.

    ensemble faults                          # every scenario
    ensemble faults members haproxy --markdown faults.md
    ensemble faults fuzz --help              # hostile and costly input, which has options of its own
    ensemble faults refusals --help          # more requests than a server can answer, likewise
    ensemble faults kills --help             # processes killed at any moment of a start, a load, a stop
    ensemble faults memory --help            # 200,000 requests, and the memory that they take

Each scenario starts a server of its own, of the shipped configuration with the bundled models. Clients never retry a
request. It prints the requests that failed, the answers that lacked a member, the rate of answers during the fault as a
fraction of that before, and the longest time without an answer. A server takes half a minute to start; all scenarios
take about a quarter of an hour. The exit status is 1 if every request of a scenario failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from tqdm import tqdm

from ensemble_models.results import Table, add_files, check_files, write_files
from lab.benchmark.workloads import workload
from lab.faults import kills, memory, refusals
from lab.faults.fuzz import command as fuzz
from lab.faults.scenarios import SCENARIOS, Scenario
from lab.faults.stage import CALM_S, Sight, sight, stage
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.serve.environment import set_up

# What has options of its own.
CAMPAIGNS = {
    "fuzz": fuzz.main,
    "refusals": refusals.main,
    "kills": kills.main,
    "memory": memory.main,
}
HEADINGS = ("what is done", "requests", "failed", "degraded", "rate kept", "outage, s", "p99, ms")
CLIENTS = 16
Result = tuple[Scenario, Sight]


def measure(scenario: Scenario, clients: int) -> Sight:
    """Measure what clients see of a scenario.

    Raises:
        ScriptError: the server did not start, or was not whole again in time.
    """
    with stage(workload("embedded", "int8"), scenario.placement, scenario.replicas, clients, scenario.nodes) as here:
        began = time.perf_counter()
        scenario.do(here)
        ended = time.perf_counter() - CALM_S
    seen = here.clients
    return sight(seen.records(), seen.began, began, ended, seen.first_error)


def cells(result: Result) -> list[str]:
    """Format a result as a line of the table."""
    scenario, seen = result
    numbers = [f"{n:,}" for n in (seen.requests, seen.failed, seen.degraded)]
    return [scenario.what, *numbers, f"{seen.kept:.2f}", f"{seen.dark_s:.1f}", f"{seen.p99_ms:,.0f}"]


def table(results: Sequence[Result]) -> Table:
    """Make a table of the results, a line each."""
    return Table(HEADINGS, [cells(result) for result in results])


def report(results: Sequence[Result], args: argparse.Namespace) -> None:
    """Print the results, and write the files that were asked for."""
    (compared := table(results)).show()
    for scenario, seen in results:
        if seen.first_failure:
            print(f"{scenario.name}: the first failure was {seen.first_failure}")
    records = [{"scenario": scenario.name, "what": scenario.what, **asdict(seen)} for scenario, seen in results]
    write_files(args, compared, records)


def main() -> None:
    """Parse the command line and measure."""
    if campaign := CAMPAIGNS.get("".join(sys.argv[1:2])):
        campaign(sys.argv[2:])
        return
    names = [scenario.name for scenario in SCENARIOS]
    parser = described(__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--clients", type=positive, default=CLIENTS)
    add_files(parser, "json", "markdown")
    args = parser.parse_args()
    if unknown := [name for name in args.scenarios if name not in names]:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(names)}")
    check_files(parser, args)
    results: list[Result] = []
    with errors_in_one_line():
        # What deploying to the servers needs.
        set_up()
        try:
            for scenario in tqdm([s for s in SCENARIOS if s.name in (args.scenarios or names)], unit="scenario"):
                results.append((scenario, measure(scenario, args.clients)))
        finally:
            # Of what ends early, what was measured.
            if results:
                report(results, args)
    if any(seen.failed == seen.requests for _, seen in results):
        sys.exit(1)


if __name__ == "__main__":
    main()

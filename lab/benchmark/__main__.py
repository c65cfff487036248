"""Compares this application with what its models allow and with other servers, side by side in one run.

    ensemble benchmark --workload embedded --systems limit ours fastapi --json rows.json

Every round takes each system in turn, with the limit measured again between them; rows are medians over the rounds.
The load is a closed loop of clients in a process of its own, on the same cores.

Workloads: `embedded`, the bundled models; `imagenet`, ResNet-50 v1.5 and DenseNet-169 at 224x224 with random weights;
`trivial`, constant models, so that only serving costs; `photographs` and `photographs-12mp`, the models of
configs/photographs.yaml in float, with photographs of 500x375 pixels or of 12 megapixels.

Systems: `limit`; `ours` (colocated and separate, HTTP and gRPC); `throughput` (a process per core); `colocated`,
`cascade`, `student` or `cached` (one process, HTTP alone); or a file of `lab/benchmark/peers`, some of which have
variants such as `triton-callable`. Of the peers only Triton serves models of several sizes, as photographs need.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ensemble_models.results import Table, add_files, check_files, write_files
from lab.benchmark.systems import System, can_serve, named, peers, running
from lab.benchmark.workloads import WORKLOADS, Placement, Workload, workload
from scripts.errors import ScriptError, errors_in_one_line, fraction
from scripts.flags import described

NONE = "-"
LIMIT_PATIENCE_S, LIMIT_TRIES_S = 120.0, 30.0
KEYS = ("system", "placement", "protocol", "clients")
# Each measure's heading in the table, and its digits there.
MEASURES = {
    "requests_per_s": ("req/s", 0),
    "p50_ms": ("p50 ms", 2),
    "p99_ms": ("p99 ms", 1),
    "server_cpu_ms_per_request": ("server CPU ms", 2),
    "client_cpu_ms_per_request": ("client CPU ms", 2),
    "resident_mb": ("MB", 0),
    "ratio_to_limit": ("of limit", 2),
}
# A line of the result: the workload, the keys, and medians over the rounds. What a system has not is None.
Row = dict[str, Any]
# What a row is about, in the order of the keys.
Key = tuple[str, Placement | None, str | None, int]
Samples = dict[Key, list[dict[str, float]]]


class Limit:
    """What the models allow; unless settings are given, the first measurement finds those that the others keep."""

    def __init__(self, load: Workload, clients: Sequence[int], seconds: float, settings: Sequence[str] = ()) -> None:
        """Set what is measured, with a setting for each number of clients as `ensemble limit` prints them."""
        self._command = [sys.executable, "-P", "-m", "lab.benchmark.limit", *map(str, load.models)]
        self._command += [
            "--images",
            *map(str, load.images),
            "--clients",
            *map(str, clients),
            "--seconds",
            str(seconds),
        ]
        if load.precision is not None:
            self._command += ["--precision", load.precision]
        # Each number of clients is tried with a dozen settings first, and each model is checked by two programs.
        self._patience_s = LIMIT_PATIENCE_S + (seconds + LIMIT_TRIES_S) * (len(clients) + 2 * len(load.models))
        self._settings = list(settings)
        self.checks: list[dict[str, Any]] = []

    def measure(self) -> dict[int, dict[str, float]]:
        """Measure the limit; return the measurements by the number of clients.

        Raises:
            ScriptError: it could not be measured, or not in its time.
        """
        more = ["--setting", *self._settings] if self._settings else ["--check"]
        try:
            # Watched from here: a native library that hangs with the interpreter's lock held can't time out by itself.
            printed = subprocess.run(  # noqa: S603
                [*self._command, *more], capture_output=True, text=True, timeout=self._patience_s
            )
        except subprocess.TimeoutExpired as err:
            raise ScriptError(f"the limit was not measured within {self._patience_s:.0f} s; run it again") from err
        if printed.returncode != 0:
            raise ScriptError(f"the limit could not be measured: {printed.stderr[-2000:]}")
        lines = [json.loads(line) for line in printed.stdout.splitlines() if line.startswith("{")]
        self.checks += [line for line in lines if "model" in line]
        measured = [line for line in lines if "clients" in line]
        self._settings = [line["setting"] for line in measured]
        return {line["clients"]: line for line in measured}


def run(
    load: Workload, systems: Sequence[System], limit: Limit | None, clients: Sequence[int], seconds: float, rounds: int
) -> Iterator[list[Row]]:
    """Measure, round by round: after each system, the medians of what there is so far.

    Raises:
        ScriptError: a system did not start, or a request failed.
    """
    samples: Samples = defaultdict(list)
    steps = tqdm(total=rounds * max(1, len(systems)), desc=load.name, unit="system")
    for _ in range(rounds):
        before = _limit(limit, samples)
        for system in systems:
            found: dict[Key, dict[str, float]] = {}
            with running(system, load) as server:
                for protocol in system.protocols:
                    for count in clients:
                        steps.set_postfix_str(f"{system.name} {system.placement or ''} {protocol} {count}")
                        key: Key = system.name, system.placement, protocol, count
                        found[key] = server.load(load, protocol, count, seconds)
            after = _limit(limit, samples)
            for key, sample in found.items():
                if before:
                    around = (before[key[3]]["requests_per_s"] + after[key[3]]["requests_per_s"]) / 2
                    sample["ratio_to_limit"] = sample["requests_per_s"] / around
                samples[key].append(sample)
            before = after
            steps.update()
            yield _rows(load, samples)
        if not systems:
            yield _rows(load, samples)
    steps.close()


def _limit(limit: Limit | None, samples: Samples) -> dict[int, dict[str, float]]:
    if limit is None:
        return {}
    measured = limit.measure()
    for clients, sample in measured.items():
        samples["limit", None, None, clients].append(sample)
    return measured


def _rows(load: Workload, samples: Samples) -> list[Row]:
    return [
        {
            "workload": load.name,
            **dict(zip(KEYS, key, strict=True)),
            **{name: _median(found, name) for name in MEASURES},
        }
        for key, found in samples.items()
    ]


def _median(samples: list[dict[str, float]], name: str) -> float | None:
    return statistics.median(sample[name] for sample in samples) if name in samples[0] else None


def table(rows: Sequence[Row]) -> Table:
    """Return the rows by their texts."""
    headings = (*KEYS, *(heading for heading, _ in MEASURES.values()))
    lines = [
        [str(row[key] or NONE) for key in KEYS]
        + [NONE if row[name] is None else f"{row[name]:,.{digits}f}" for name, (_, digits) in MEASURES.items()]
        for row in rows
    ]
    return Table(headings, lines, words=range(3), title=rows[0]["workload"])


def report(rows: Sequence[Row], checks: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the rows, and write the files that were asked for."""
    (compared := table(rows)).show()
    for check in checks:
        share = check["limit_per_s"] / check["benchmark_app_per_s"]
        print(
            f"{Path(check['model']).parent.parent.name} alone: {check['limit_per_s']:.0f}/s here, "
            f"{check['benchmark_app_per_s']:.0f}/s by benchmark_app ({share:.2f})"
        )
    write_files(args, compared, rows)


def main() -> None:
    """Parse the command line and measure."""
    parser = described(__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default=WORKLOADS[0])
    parser.add_argument("--precision", choices=("float32", "int8"), default="int8")
    parser.add_argument(
        "--systems", nargs="+", metavar="NAME", help="default: limit, ours and the peers that can serve the workload"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--stops", type=fraction, nargs="+", metavar="SHARE", help="of the photographs, at each early stage"
    )
    parser.add_argument("--repeats", type=fraction, metavar="SHARE", help="of the requests, whose image came before")
    add_files(parser, "json", "markdown")
    args = parser.parse_args()
    if min(args.rounds, args.seconds, *args.clients) <= 0:
        parser.error("--rounds, --seconds and --clients must be above 0")
    check_files(parser, args)
    with errors_in_one_line():
        chosen = named(args.systems or ["ours", *peers()])
        load = replace(
            workload(args.workload, args.precision), stops=args.stops and tuple(args.stops), repeats=args.repeats
        )
        systems = chosen if args.systems else [system for system in chosen if can_serve(system, load)]
        limit = Limit(load, args.clients, args.seconds) if "limit" in (args.systems or ["limit"]) else None
        rows: list[Row] = []
        try:
            for so_far in run(load, systems, limit, args.clients, args.seconds, args.rounds):
                rows = so_far
        finally:
            # Of what ends early, what was measured.
            if rows:
                report(rows, limit.checks if limit else (), args)


if __name__ == "__main__":
    main()

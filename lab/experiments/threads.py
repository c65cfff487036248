"""Workers by threads: copies of the whole graph, the threads of each model in them, pinned or not, and a CPU quota."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deployments.cpus import available_cpus
from graph.placement import share_of_threads
from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import MEMBERS, workload
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from lab.experiments.quota import clean, quota
from lab.pictures.chart import Bar
from scripts.results import Table

CLIENTS, QUOTA, ROUNDS = 32, 1.5, 3
KEY = ("quota", "pinned", "workers", "threads")
FIGURES = ("requests_per_s", "p50_ms", "p99_ms")
HEADINGS = ("CPUs", "workers", "threads per model", "pinned", "requests/s", "p50, ms", "p99, ms", "of the best, %")


@dataclass(frozen=True)
class Setting:
    """A point of the grid.

    Attributes:
        workers: processes with the whole graph.
        threads: of each model in each of them.
        pinned: whether each worker has cores of its own (`cpus: auto`).
        quota: CPUs that all may use together; None for those of the machine.
    """

    workers: int
    threads: int
    pinned: bool
    quota: float | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is what a configuration that says nothing about threads gets here."""
        cores = available_cpus() if self.quota is None else max(1, math.floor(self.quota))
        return (self.workers, self.threads, self.pinned) == (1, share_of_threads(cores, len(MEMBERS), 1), False)

    def edit(self, config: dict[str, Any]) -> None:
        """Change the Serve config of one process."""
        application = config["applications"][0]
        if self.pinned:
            application["args"]["cpus"] = "auto"
        for member in application["args"]["members"]:
            member["threads"] = self.threads
        [ingress] = application["deployments"]
        ingress.update(num_replicas=self.workers, ray_actor_options={"num_cpus": 0.5})


def grid() -> list[Setting]:
    """Workers and threads up to the cores, pinned and not, and unpinned in a quota."""
    counts = sorted({1, available_cpus()})
    kinds: list[tuple[bool, float | None]] = [(False, None), (True, None), (False, QUOTA)]
    return [
        Setting(workers, threads, pinned, limit) for pinned, limit in kinds for workers in counts for threads in counts
    ]


def measure(seconds: float) -> Sequence[Part]:
    """Serve and load every setting, in each of the rounds."""
    return [
        Part(f"{each}, {turn}", partial(_measured, each, seconds), {**asdict(each), "default": each.is_default})
        for turn in range(ROUNDS)
        for each in grid()
    ]


def _measured(setting: Setting, seconds: float) -> Iterator[dict[str, float]]:
    load = workload("embedded", "int8")
    try:
        with ExitStack() as stack:
            with quota(setting.quota):
                server = stack.enter_context(running(OURS["colocated"], load, setting.edit))
            found = server.load(load, "http", CLIENTS, seconds)
    finally:
        clean()
    yield {name: found[name] for name in FIGURES}


def medians(rows: Rows) -> Rows:
    """Of each setting its medians over the rounds, or the error of one."""
    by_setting: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        by_setting.setdefault(tuple(row[name] for name in KEY), []).append(row)
    found = []
    for same in by_setting.values():
        failed = [row for row in same if "error" in row]
        figures = {} if failed else {name: statistics.median(row[name] for row in same) for name in FIGURES}
        found.append((failed or same)[0] | figures)
    return found


def best(rows: Rows, limit: float | None) -> float:
    """The highest rate under a quota, requests/s."""
    return max(
        (row["requests_per_s"] for row in rows if row["quota"] == limit and "error" not in row), default=math.nan
    )


def table(rows: Rows) -> Table:
    """The rows by their texts, and how far the default is from the best."""
    lines, notes, rows = [], [], medians(rows)
    for row in rows:
        where = "all" if row["quota"] is None else f"{row['quota']:g} by quota"
        words = [where, str(row["workers"]), str(row["threads"]), "yes" if row["pinned"] else "no"]
        if "error" in row:
            lines.append([*words, *["not measured"] * 4])
            notes.append(f"{', '.join(words)}: {row['error']}")
            continue
        share = 100 * row["requests_per_s"] / best(rows, row["quota"])
        lines.append([*words, *(f"{row[name]:.1f}" for name in FIGURES), f"{share:.0f}"])
        if row["default"]:
            notes.append(f"The default, with {where} CPUs, reaches {share:.0f} % of the best rate of the grid.")
    return Table(HEADINGS, lines, words=(0, 3), notes=notes)


def compare(rows: Rows) -> Mapping[str, Here]:
    """The unpinned settings on all CPUs, from the slowest, beside the row; the ends beside the matched threads."""
    differs = "two models of 32x32, two cores; the models and cores of the reported rates are not recorded"
    chosen = [row for row in medians(rows) if row["quota"] is None and not row["pinned"] and "error" not in row]
    ordered = sorted(chosen, key=lambda row: row["requests_per_s"])
    names = [
        "rate of one setting of workers and threads, the first of a row",
        "rate of one setting, the second of the row",
        "rate of one setting, the third of the row",
        "rate of one setting, the last of the row",
    ]
    pairs = list(zip(names, ordered, strict=False))
    if ordered:
        pairs += [
            ("rate before threads were matched to cores", ordered[0]),
            ("rate after threads were matched to cores", ordered[-1]),
        ]
    return {name: Here(row["requests_per_s"], _told(row), differs) for name, row in pairs}


def _told(row: Mapping[str, Any]) -> str:
    return f"{row['requests_per_s']:.0f} requests/s with {row['workers']} x {row['threads']}"


def picture(rows: Rows) -> Groups:
    """A group for each number of CPUs, the default marked."""
    groups = []
    for limit in (None, QUOTA):
        own = [row for row in medians(rows) if row["quota"] == limit and "error" not in row]
        bars = [
            Bar(
                f"{row['workers']} workers, {row['threads']} threads{', pinned' * row['pinned']}",
                row["requests_per_s"],
                f"{row['requests_per_s']:.0f}",
                ours=row["default"],
            )
            for row in own
        ]
        groups.append(("all CPUs" if limit is None else f"a quota of {limit:g} CPUs", bars))
    return [group for group in groups if group[1]]


THREADS = Experiment(
    "threads",
    "Requests per second by workers and threads per model; the default is coloured",
    f"Images of 15 KB, models of 32x32 in int8, {CLIENTS} clients over HTTP, a process per worker, {ROUNDS} rounds",
    check_photographs,
    measure,
    table,
    compare,
    picture,
    seconds=4.0,
)

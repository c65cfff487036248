"""Throughput and latency by the largest batch, the wait for it, and the rate of Poisson arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

from ensemble_capacity.load.load import Arrivals, Closed, Mode
from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import changed, workload
from lab.experiments.experiment import Here, check_photographs, declared
from lab.rows import Part, Row, Rows, measured

# The largest batch, and the wait for it; a batch of one image waits for nothing.
SETTINGS = ((1, 0.0), (8, 0.0), (8, 5.0), (32, 0.0), (32, 20.0))
RATES, CLIENTS, ROUNDS = (15, 25), 32, 3
FULL = f"{CLIENTS} clients"


@dataclass(frozen=True)
class Setting:
    """The largest batch, and how long an image waits for others."""

    size: int
    wait_ms: float

    def edit(self, config: dict[str, Any]) -> None:
        """Change the Serve config of one process."""
        changed({"ingress": {"max_batch_size": self.size, "batch_wait_ms": self.wait_ms}})(config)

    def load(self, seconds: float) -> Iterator[Row]:
        """Serve this setting; send each rate, and as much as a closed loop reaches, in each of the rounds."""
        load = workload("photographs", "int8")
        modes: dict[str, Mode] = {f"{rate}/s": Arrivals(rate) for rate in RATES} | {FULL: Closed(CLIENTS)}
        with running(OURS["colocated"], load, self.edit) as server:
            for name, mode in [*modes.items()] * ROUNDS:
                before = server.batches()
                row = server.row(load, "http", mode, seconds)
                batches = server.batches() - before
                times = {f"{percent}_ms": row.percentiles_ms[percent] for percent in ("p50", "p99")}
                counts = {"requests": row.requests, "failed": row.failed}
                yield {"sent": name, "requests_per_s": row.requests_per_s, **counts, **times, "batch": mean(batches)}


def mean(batches: Counter[int]) -> float | None:
    """Calculate the mean number of images of a batch; None if there was none."""
    return sum(size * count for size, count in batches.items()) / batches.total() if batches else None


def parts(seconds: float) -> Sequence[Part]:
    """Make each setting a part."""
    return [Part(str(each), partial(each.load, seconds), vars(each)) for each in starmap(Setting, SETTINGS)]


def compare(rows: Rows) -> Mapping[str, Here]:
    """Compare the highest rate, and the latency of few requests, by the largest batch."""
    own = measured(rows)
    best = {row["size"]: row for row in sorted(own, key=lambda row: row["requests_per_s"]) if row["sent"] == FULL}
    few = [row for row in own if row["sent"] == f"{RATES[0]}/s" and row["size"] > 1]
    rates = ", ".join(f"{row['requests_per_s']:.1f}/s in batches of up to {size}" for size, row in sorted(best.items()))
    waits = ", ".join(
        f"{row['p50_ms']:.1f} ms in batches of up to {row['size']} with a wait of {row['wait_ms']:g}" for row in few
    )
    return {"micro-batches": Here(None, f"{rates}; at {RATES[0]}/s a p50 of {waits}")}


BATCHING = declared(
    "batching", check=check_photographs, parts=parts, ours=lambda row: not row["wait_ms"], compare=compare
)

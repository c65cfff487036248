"""Predicts drawn configurations under drawn loads by `ensemble plan`, and measures them in another server.

A configuration is drawn from models, placement, batching and threads; its loads from the loads that a
profile reaches and did not measure. A prediction holds if the measured figure lies in its interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

from ensemble_capacity.load.load import Closed
from ensemble_capacity.plan.__main__ import fixed
from ensemble_capacity.plan.__main__ import measure as profiled
from ensemble_capacity.plan.model import FIGURES, WIDE, Profile, predict
from ensemble_capacity.serving import loaded, serving
from lab.benchmark.workloads import Placement, changed, workload
from lab.experiments.experiment import declared
from lab.pictures import Bar, Groups
from lab.rows import Part, Row, Rows, measured

CONFIGURATIONS, LOADS = 10, 2
MODELS = "photographs", "embedded"
PLACEMENTS: tuple[Placement, ...] = ("colocated", "separate")
SETTINGS = {
    "max_batch_size": (4, 8, 16, 32),
    "batch_wait_ms": (0, 2, 10),
    "max_concurrent_batches": (1, 2),
}
THREADS = (None, 1, 2)
NAMES = {"requests_per_s": "requests per second", "p50_ms": "p50", "p99_ms": "p99"}


def parts(seconds: float) -> Sequence[Part]:
    """Make each drawn configuration a part; every model and placement has its turn."""
    found, draw = [], Random(0)
    kinds = list(product(MODELS, PLACEMENTS))
    for number in range(CONFIGURATIONS):
        models, placement = kinds[number % len(kinds)]
        ingress = {name: draw.choice(some) for name, some in SETTINGS.items()}
        threads = draw.choice(THREADS)
        key = {"number": number + 1, "models": models, "placement": placement, **ingress, "threads": threads or "open"}
        measure = partial(compared, models, placement, ingress, threads, seconds, number)
        found.append(Part(f"configuration {number + 1}", measure, key))
    return found


def compared(
    models: str, placement: Placement, ingress: Mapping[str, Any], threads: int | None, seconds: float, seed: int
) -> Iterator[Row]:
    """Profile a configuration, and compare predictions with loads of a server that is started anew."""
    load = workload(models, "float32")
    config = load.config(placement, 8000, 9000)
    changed({"ingress": ingress}, {"threads": threads})(config)
    images = [path.read_bytes() for path in load.images]
    served = fixed(config)
    profile = profiled(served, images)
    with serving(served) as url:
        for clients in loads(profile, Random(seed)):
            row, told = loaded(url, images, Closed(clients), seconds), predict(profile, clients, profile.cores)
            seen = row.requests_per_s, row.percentiles_ms["p50"], row.percentiles_ms["p99"]
            yield {
                "load": row.name,
                "requests": row.requests,
                "failed": row.failed,
                **{name: float(value) for name, value in zip(FIGURES, seen, strict=True)},
                **{f"{name}_bounds": list(told.intervals[name]) for name in FIGURES},
            }


def loads(profile: Profile, draw: Random) -> Sequence[int]:
    """Draw numbers of clients that a profile reaches and has not measured."""
    known = {loop.clients for loop in (*profile.loops, *profile.checks)}
    return draw.sample([n for n in range(1, profile.reach) if n not in known], LOADS)


def holds(row: Row, name: str) -> bool:
    """Tell whether a measured figure lies in its predicted interval."""
    low, high = row[f"{name}_bounds"]
    return bool(low <= row[name] <= high)


def tabled(rows: Rows) -> Rows:
    """Count the intervals of each figure, those with the measured figure, and the wide ones, by models."""
    found = []
    for models, name in product(MODELS, FIGURES):
        own = [row for row in measured(rows) if row["models"] == models]
        bounds = [row[f"{name}_bounds"] for row in own]
        held, wide = sum(holds(row, name) for row in own), sum(high > WIDE * low for low, high in bounds)
        found.append({"models": models, "figure": NAMES[name], "intervals": len(own), "held": held, "wide": wide})
    return [*found, *(row for row in rows if "error" in row)]


def counts(rows: Rows) -> Sequence[tuple[str, int, int]]:
    """Count by figure the measurements in their intervals, and all of them."""
    return [(name, sum(holds(row, name) for row in rows), len(rows)) for name in FIGURES]


def picture(rows: Rows) -> Groups:
    """Draw the share of the measurements in their intervals, by models and figure."""
    groups = []
    for models in MODELS:
        found = counts([row for row in measured(rows) if row["models"] == models])
        bars = [Bar(NAMES[name], 100 * held / n, f"{held} of {n}", True) for name, held, n in found if n]
        groups.append((models, bars))
    return groups


PREDICTIONS = declared("predictions", parts=parts, tabled=tabled, picture=picture)

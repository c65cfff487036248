"""Checks predictions: draws configurations, predicts all of them, then serves and loads each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan.calibration import ratios
from ensemble_capacity.plan.model import Prediction, predict
from ensemble_capacity.plan.placements import asking_all, placed, tuned
from ensemble_capacity.plan.profile import FIGURES, Placement, Profile
from ensemble_capacity.plan.scenario import every_member
from ensemble_capacity.plan.server import loaded, serving
from ensemble_models.results import Table

SIZES, WAITS_MS, IN_FLIGHT, THREADS = (1, 2, 4, 8, 16, 32), (0.0, 0.0, 2.0, 5.0), (1, 1, 2, 3), (1, 1, 2)
CLIENTS, SHARES = (1, 2, 4, 8, 16, 32), (0.3, 0.5, 0.7, 0.85)
PLACEMENTS: tuple[Placement, ...] = ("inline", "inline", "separate")
# Of a hundred requests per second the ten slowest then decide the p99.
SECONDS = 10.0
HEADINGS = (
    "configuration",
    "load",
    *(f"{name}, predicted | measured" for name in ("requests/s", "p50, ms", "p99, ms")),
)


@dataclass(frozen=True)
class Case:
    """A drawn configuration under a load, with its prediction."""

    name: str
    config: dict[str, Any]
    load: Closed | Arrivals
    predicted: Prediction


def drawn(config: Mapping[str, Any], profile: Profile, random: Random) -> Case:
    """Draw a configuration and a load: a closed loop, or Poisson arrivals at a share of the predicted highest rate."""
    placement, threads = random.choice(PLACEMENTS), random.choice(THREADS)
    size, wait, in_flight = random.choice(SIZES), random.choice(WAITS_MS), random.choice(IN_FLIGHT)
    ingress = {"max_batch_size": size, "batch_wait_ms": wait, "max_concurrent_batches": in_flight}
    changed = tuned(asking_all(placed(config, placement)), threads=threads, ingress=ingress)
    given = every_member(changed)
    load: Closed | Arrivals = Closed(random.choice(CLIENTS))
    if random.random() < 0.5:
        most = predict(given, profile, Closed(max(CLIENTS)), clients_here=True).requests_per_s
        load = Arrivals(round(random.choice(SHARES) * most, 1))
    name = f"{placement}, batch {size}, wait {wait:g} ms, {in_flight} in flight, threads {threads}"
    return Case(name, changed, load, predict(given, profile, load, clients_here=True))


def compared(cases: Sequence[Case], photographs: Sequence[bytes]) -> Iterator[tuple[Case, dict[str, float]]]:
    """Serve and load each case; yield its measured figures."""
    for case in cases:
        with serving(case.config) as url:
            row = loaded(url, photographs, case.load, SECONDS)
        yield case, ratios(row, dict.fromkeys(FIGURES, 1.0))


def table(found: Sequence[tuple[Case, dict[str, float]]]) -> Table:
    """Make a line of each case, and count the measured figures that lie in their interval."""
    lines, inside, wide = [], dict.fromkeys(FIGURES, 0), dict.fromkeys(FIGURES, 0)
    for case, seen in found:
        cells = []
        for name in FIGURES:
            bounds, value = case.predicted.intervals[name], seen.get(name, float("inf"))
            # Where all arrivals are answered, their number varies as a Poisson process does: 95 % within this share.
            slack = 2 / math.sqrt(bounds.low * SECONDS) if bounds.low == bounds.high else 0.0
            is_inside = bounds.low * (1 - slack) <= value <= bounds.high * (1 + slack)
            inside[name] += is_inside
            wide[name] += bounds.is_wide
            cells.append(f"{bounds} | {value:.1f}{'' if is_inside else ' outside'}")
        lines.append([case.name, case.predicted.load, *cells])
    notes = [
        f"{name}: {inside[name]} of {len(found)} inside; {wide[name]} intervals are wider than twice their lower end."
        for name in FIGURES
    ]
    return Table(HEADINGS, lines, words=range(len(HEADINGS)), notes=notes)

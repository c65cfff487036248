"""A profile of round numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ensemble_capacity.plan.model import FIGURES, SHARES, Check, Loop, Profile

ROOT = Path(__file__).parents[4]
RATIOS = (0.9, 1.0, 1.0, 1 / 0.9)


def loops(*rates: float) -> tuple[Loop, ...]:
    """Closed loops of 1, 2, 4, ... clients that answer these rates, every request of a loop as fast as the others."""
    each = ((2**power, rate) for power, rate in enumerate(rates))
    return tuple(Loop(clients, rate, (1000 * clients / rate,) * len(SHARES), 2.0) for clients, rate in each)


def profile(**more: Any) -> Profile:
    """A server that answers 100 requests per second, one after the other, on two cores.

    Its predictions were right, but for a tenth more or less.
    """
    highest = {True: 48, False: 80}
    checks = tuple(Check(*each, dict.fromkeys(FIGURES, ratio)) for each in highest.items() for ratio in RATIOS)
    machine = {"cpu": "a CPU", "cores": "2", "date": "today"}
    given = {"digest": "", "machine": machine, "cores": 2, "most_in_flight": 1000}
    return Profile(
        **{**given, "loops": loops(100, 100, 100), "replicas_mb": 500, "rest_mb": 400, "checks": checks, **more}
    )


def application(file: str = "configs/colocated.yaml", **ingress: Any) -> dict[str, Any]:
    """The application of a shipped configuration, with other settings of its ingress."""
    found: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())["applications"][0]
    found["args"]["ingress"] = {**found["args"].get("ingress", {}), **ingress}
    return found

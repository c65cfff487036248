"""A profile of round numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ensemble_capacity.plan.model import Loop, Profile

ROOT = Path(__file__).parents[4]
RATIOS = (0.9, 1.0, 1.0, 1 / 0.9)


def loops(*rates: float) -> tuple[Loop, ...]:
    """Closed loops of 1, 2, 4, ... clients that answer these rates, every request of a loop as fast as the others."""
    return tuple(loop(2**power, rate) for power, rate in enumerate(rates))


def loop(clients: int, rate: float, ratio: float = 1.0, requests: int = 1000) -> Loop:
    """A closed loop at a server that answers at a rate; each figure is that many times what it is there."""
    latency_ms = ratio * 1000 * clients / rate
    return Loop(clients, requests, ratio * rate, latency_ms, latency_ms, 2.0)


def profile(loops: tuple[Loop, ...] = loops(100, 100, 100), **more: Any) -> Profile:
    """A server that answers, by default, 100 requests per second, one after the other, on two cores.

    Its predictions were right, but for a tenth more or less.
    """
    given = {
        "cores": 2,
        "loops": loops,
        "checks": tuple(loop(48, max(each.requests_per_s for each in loops), ratio) for ratio in RATIOS),
        "replicas_mb": 500,
        "rest_mb": 400,
    }
    return Profile(**{**given, **more})


def application(file: str = "configs/colocated.yaml", **ingress: Any) -> dict[str, Any]:
    """The application of a shipped configuration, with other settings of its ingress."""
    found: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())["applications"][0]
    found["args"]["ingress"] = {**found["args"].get("ingress", {}), **ingress}
    return found

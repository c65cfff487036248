"""A profile whose durations are round numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ensemble_capacity.plan.profile import FIGURES, SHARES, Check, Curve, Overhead, Point, Profile, Served

ROOT = Path(__file__).parents[4]
# Delays of requests that wait for nothing.
NONE = (0.0,) * len(SHARES)
RATIOS = (0.9, 1.0, 1.0, 1 / 0.9)


def curve(threads: int = 1, ms: float = 1.0, together: float = 1.0) -> Curve:
    """A node that takes so many milliseconds of CPU time for an image, evenly on its threads."""
    points = tuple(Point(images, ms * images, ms * images / threads) for images in (1, 16))
    return Curve(threads, threads, points, (together, together))


def profile(**more: Any) -> Profile:
    """Members of 1 ms an image, a transformer that takes nothing worth noting, and a server that costs nothing.

    Its predictions were right, but for a tenth more or less.
    """
    free = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, NONE, 500.0, 200.0, 400.0)
    nodes = {"JpegTransformer": (curve(ms=1e-9),), "resnet": (curve(),), "densenet": (curve(),)}
    given = {"machine": {"cpu": "a CPU", "cores": "2", "date": "today"}, "cores": 2, "nodes": nodes}
    checks = tuple(Check(closed, dict.fromkeys(FIGURES, ratio)) for closed in (True, False) for ratio in RATIOS)
    return Profile(
        **{**given, "served": {"inline": free, "separate": free}, "checks": checks, "is_complete": True, **more}
    )


def application(file: str = "configs/colocated.yaml", **ingress: Any) -> dict[str, Any]:
    """The application of a shipped configuration, with other settings of its ingress."""
    found: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())["applications"][0]
    found["args"]["ingress"] = {**found["args"].get("ingress", {}), **ingress}
    return found

"""Writes a Serve config with a comment beside every field that was chosen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from deployments.ingress.settings import IngressSettings
from ensemble_capacity.tune.search import Goal, Tried

FIELD = re.compile(r"^(?P<indent>[ -]*)(?P<name>\w+): \S.*$")
MORE = {
    "placement": "where the node runs: `inline`, in the ingress' process, or `separate`, in one of its own",
    "threads": "that compute; left out, the member's share of the cores",
    "num_replicas": "processes",
    "streams": "parts of a batch that a member computes at a time; left out, the fastest, measured at the first start",
    "version": "of the model",
    "exit_at": "the probability from which an image is asked no further, for each member but the last",
}


def in_words(cores: int) -> str:
    """`1 core`, or `2 cores`."""
    return "1 core" if cores == 1 else f"{cores} cores"


def in_minutes(seconds: float) -> str:
    """`40 s`, or `3 minutes`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def in_p99(p99_ms: float) -> str:
    """`a p99 of 43.9 ms`, or what it is where requests failed, or more are sent than are answered."""
    return "a p99 without end" if math.isinf(p99_ms) else f"a p99 of {p99_ms:.1f} ms"


def text(config: Mapping[str, Any], chosen: Tried, goal: Goal, machine: Mapping[str, str], cores: int) -> str:
    """The file: what it is for, what was measured of it, and the configuration, commented once per field.

    Args:
        config: the Serve config of the candidate.
        chosen: the candidate, and what is known of it.
        goal: what it was chosen for.
        machine: the profile's facts.
        cores: that it is for; where the machine has more, confine the server to them.
    """
    said = f"{chosen.predicted.requests_per_s:.0f} requests/s at {in_p99(chosen.predicted.p99_ms)}"
    lines = [
        f"# Chosen by `ensemble tune` for a p99 of at most {goal.p99_ms:g} ms.",
        f"# {chosen.candidate}.",
        f"# Predicted: {said}.",
    ]
    if chosen.candidate.form.loss:
        lines.append(f"# Top-1 against the configuration that was tuned: {chosen.candidate.form.loss}.")
    if chosen.measured_rate is not None:
        seen = f"{chosen.measured_rate:.0f} requests/s at {in_p99(chosen.p99_ms)}"
        lines.append(f"# Measured with Poisson arrivals of {chosen.rate:.0f}/s: {seen}.")
    lines.append(f"# For {in_words(cores)}; where there are more: taskset -c 0-{cores - 1} ensemble serve FILE")
    lines.append(f"# Profile: {machine['cpu']}, {machine['cores']} cores, {machine['date']}.")
    known = {name: field.description for name, field in IngressSettings.model_fields.items()} | MORE
    commented: set[str] = set()
    for line in yaml.safe_dump(dict(config), sort_keys=False, width=120).splitlines():
        found = FIELD.match(line)
        name = found["name"] if found is not None else ""
        if name in known and name not in commented and found is not None:
            commented.add(name)
            lines.append(f"{' ' * len(found['indent'])}# {name}: {known[name]}")
        lines.append(line)
    return "\n".join(lines) + "\n"

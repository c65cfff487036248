"""The CPUs and the memory that replicas reserve, and whether Ray can place them on this machine."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import psutil

from deployments.contract.errors import ConfigurationError
from deployments.cpus import available_cpus
from scripts.configuration import replicas_at_start

GIB = 1024**3


class Resources(NamedTuple):
    """CPUs, and memory in bytes."""

    num_cpus: float
    memory: float

    def __str__(self) -> str:
        return f"{self.num_cpus:g} CPUs and {self.memory / GIB:.1f} GiB"


def available() -> Resources:
    """Measure what Ray gets on this machine: its CPUs, and at most the memory that is free now."""
    return Resources(available_cpus(), psutil.virtual_memory().available)


def reserved_by(deployment: Mapping[str, Any]) -> Resources:
    """Read what a replica reserves by an entry of `deployments`; Serve's own default is a CPU."""
    # What `graph.app` has where the entry has no options at all.
    options = deployment.get("ray_actor_options", {"num_cpus": 0.1})
    cpus = options.get("num_cpus")
    return Resources(1.0 if cpus is None else cpus, options.get("memory") or 0)


def reserved(config: Mapping[str, Any]) -> Resources:
    """Sum what this machine's replicas of a Serve config reserve at the start."""
    found = [(replicas_at_start(each), reserved_by(each)) for _, each in _entries(config)]
    return Resources(
        round(sum(count * each.num_cpus for count, each in found), 4), sum(count * each.memory for count, each in found)
    )


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, application in enumerate(config.get("applications") or []):
        for j, entry in enumerate(application.get("deployments") or []):
            yield f"applications.{i}.deployments.{j}", entry


def check_placement(config: Mapping[str, Any], there: Resources) -> None:
    """Raise ConfigurationError for replicas that Ray can't place on a machine, where they would be waited for."""
    found = [
        f"{path}.ray_actor_options: a replica of {entry['name']} reserves {own}, and Ray has {there}; lower it"
        for path, entry in _entries(config)
        if (own := reserved_by(entry)).num_cpus > there.num_cpus or own.memory > there.memory
    ]
    total = reserved(config)
    if not found and (total.num_cpus > there.num_cpus or total.memory > there.memory):
        found = [
            f"applications: all replicas reserve {total} at the start, and Ray has {there}; lower `num_cpus`, `memory` "
            "or the number of replicas of its deployments"
        ]
    if found:
        raise ConfigurationError(*found)

"""The cores of a replica: pinned, or shared with the other replicas of its deployment on this machine."""

from __future__ import annotations

import logging

import ray
from ray import serve

from deployments.cpus import REPLICAS, Pinning

logger = logging.getLogger("ray.serve")


def take_cores(pinning: Pinning | None) -> None:
    """Pin this process, or note how many share its cores; before its models are compiled, which start their threads.

    Raises:
        ConfigurationError: a CPU of the configuration is not there.
    """
    context = serve.get_replica_context()
    machines = sum(bool(node["Alive"]) for node in ray.nodes())  # type: ignore[no-untyped-call]
    here = max(1, -(-(context.world_size or 1) // max(1, machines)))
    if pinning is None:
        REPLICAS.set(here)
        return
    cpus = pinning.pin(context.rank.local_rank if context.rank is not None else 0, here)
    logger.info("%s computes on CPUs %s", context.replica_id, list(cpus))

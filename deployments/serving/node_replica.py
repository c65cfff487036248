"""The deployment that a separate node runs in."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray import serve

from deployments.contract.batch import Batch
from deployments.contract.nodes import HealthChecked, Node
from deployments.cpus import REPLICAS, Pinning
from deployments.observe import output
from deployments.observe.metrics import StateReport, report_counters, report_periodically
from deployments.observe.observer import AutoscalingStats
from deployments.reconfigure import LiveSettings
from deployments.rpc.listener import Listener, sockets

logger = logging.getLogger("ray.serve")

# A replica of a node that is no longer in the configuration works on until its callers have ended, but not longer than
# this: the replica keeps its CPUs until then, and the new ingress may need them.
REMOVED_S, LOOK_EVERY_S = 50.0, 0.5


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


class NodeDeployment:
    """Runs one node, which batches reach by Serve's handle or by a socket on the same machine."""

    def __init__(
        self, name: str, make: Callable[[], Node[Any, Any]], listens: bool = False, pinning: Pinning | None = None
    ) -> None:
        """Make the node here, in the replica, on its CPUs; `listens` says whether it has a socket."""
        self._name = name
        take_cores(pinning)
        self.node = make()
        self._autoscaling_stats = AutoscalingStats()
        self._settings = LiveSettings({name: self.node})
        self._listener: Listener | None = None
        if listens:
            context = serve.get_replica_context()
            folder = sockets(context.app_name, context.deployment)
            if folder is not None:
                self._listener = Listener(self.__call__, folder, context.replica_id.unique_id)
        report_periodically(StateReport({name: self.node}), "metrics")
        report_counters()
        report_periodically(output.keep_small, "standard output")

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Call the node."""
        with self._autoscaling_stats.call():
            answer: Batch[Any] = await self.node(batch)
        return answer

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the fields of the node's settings."""
        self._settings.apply({self._name: user_config})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the batches in progress, by sockets and handles, because Serve counts only handle calls."""
        return {"running_requests": self._autoscaling_stats.under_way, **self._autoscaling_stats.stats()}

    async def check_health(self) -> None:
        """Raise if the node can't work any more."""
        # Serve asks for the first time when the replica is complete, its `user_config` applied.
        if self._listener is not None:
            try:
                await self._listener.keep_open()
            except OSError:
                logger.exception("%s can't listen on a socket; it is called by handle", self._name)
                self._listener = None
        if isinstance(self.node, HealthChecked):
            self.node.check_health()

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica: it finishes the batches from the socket.

        Serve stops a node that is no longer in the configuration at once, but it stops the ingress that calls this node
        only when the new ingress is ready.
        """
        if (listener := self._listener) is not None:
            give_up = time.monotonic() + REMOVED_S
            while bool(listener.callers) and time.monotonic() < give_up and await asyncio.to_thread(_is_removed):
                await asyncio.sleep(LOOK_EVERY_S)
            await listener.close()


def _is_removed() -> bool:
    """Ask Serve whether its application goes on without this replica's deployment; False if Serve does not tell."""
    context = serve.get_replica_context()
    try:
        application = serve.status().applications.get(context.app_name)
    except Exception:
        logger.exception("Serve does not tell whether it has removed %s", context.deployment)
        return False
    # While Serve builds an application, or after that has failed, Serve lists none of its deployments.
    listed = application.deployments if application is not None else {}
    return bool(listed) and context.deployment not in listed

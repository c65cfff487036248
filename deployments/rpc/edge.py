"""Edges: callers of a node in another process, by sockets (`direct.py`) or by Serve's handle."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.contract.batch import Batch
from deployments.contract.errors import NoReplica, Overloaded
from deployments.contract.nodes import Node
from deployments.observe.metrics import TaggedCounter
from deployments.ray_internals.serve_client import user_config
from deployments.reconfigure import LiveSettings
from deployments.rpc.cluster import ClusterSize
from deployments.rpc.direct import DirectEdge
from deployments.rpc.listener import sockets
from deployments.rpc.stand_in import Factory, StandIn

logger = logging.getLogger("ray.serve")


def edge(
    name: str,
    handle: DeploymentHandle[Any],
    is_direct: bool,
    calls: TaggedCounter,
    cluster: ClusterSize,
    stand_ins: tuple[Factory, Factory] | None,
) -> Node[Any, Any]:
    """Make the caller of a separate node, by its sockets on this machine or by its handle; it counts calls."""
    by_handle = HandleEdge(handle)
    application, deployment = serve.get_replica_context().app_name, handle.deployment_name
    folder = sockets(application, deployment) if is_direct else None
    if folder is None:
        return by_handle
    stand_in = None
    if stand_ins is not None:
        usual, careful = (partial(_make_adjusted, name, make, application, deployment) for make in stand_ins)
        stand_in = StandIn(name, (usual, careful))
    return DirectEdge(folder, by_handle, partial(calls.add, name), cluster, stand_in)


def _make_adjusted(name: str, make: Factory, application: str, deployment: str) -> Node[Any, Any]:
    """Make a node with the settings that Serve gives to the replicas of its deployment."""
    node = make()
    LiveSettings({name: node}).apply({name: user_config(application, deployment)})
    return node


class HandleEdge:
    """A node in another process, awaited like a node in this one."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Send the batch and wait for the node's answer; once more if the replica or its machine is lost meanwhile.

        Raises:
            Overloaded: as many batches wait for the node as its `max_queued_requests` allows.
            NoReplica: the node is no longer in Serve's configuration.
        """
        sent = batch.outbound()
        try:
            answer = await self._call(sent)
        except (ActorDiedError, ActorUnavailableError) as err:
            logger.warning("a replica was lost (%s); its batch is sent to another", type(err).__name__)
            answer = await self._call(sent)
        return answer.after(batch)

    async def _call(self, sent: Batch[Any]) -> Batch[Any]:
        response = self._handle.remote(sent)
        try:
            answer: Batch[Any] = await response
        except BackPressureError:
            raise Overloaded(f"{self._handle.deployment_name} has as many waiting calls as may wait") from None
        except DeploymentUnavailableError as err:
            raise NoReplica(f"Serve has ended {self._handle.deployment_name}") from err
        except asyncio.CancelledError:
            # The node would go on working for nobody while the next batch waits.
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return answer

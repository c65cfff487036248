"""Edges: callers of a node in another process, by sockets (`direct.py`) or by Serve's handle."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.contract.batch import Batch
from deployments.contract.counting import TaggedCounter
from deployments.contract.errors import NoReplica, Overloaded
from deployments.contract.nodes import Node
from deployments.ray_internals.serve_client import user_config
from deployments.reconfigure import LiveSettings
from deployments.rpc.cluster import ClusterSize
from deployments.rpc.direct import DirectEdge
from deployments.rpc.listener import sockets
from deployments.rpc.stand_in import Factory, StandIn

logger = logging.getLogger("ray.serve")


def by_handle(handles: Mapping[str, DeploymentHandle[Any]]) -> dict[str, Node[Any, Any]]:
    """Make the callers of separate nodes by their handles."""
    return {name: HandleEdge(handle) for name, handle in handles.items()}


def edges(
    application: str,
    handles: Mapping[str, DeploymentHandle[Any]],
    stand_ins: Mapping[str, tuple[Factory, Factory]],
) -> dict[str, Node[Any, Any]]:
    """Make the callers of separate nodes, by their sockets on this machine or by their handles; they count calls."""
    calls = TaggedCounter(
        "ensemble_edge_calls",
        "Batches for a separate node: direct (socket), handle, or inline (the ingress did its work).",
        "node",
        "edge",
    )
    made, cluster = by_handle(handles), ClusterSize()
    for name, handle in handles.items():
        deployment = handle.deployment_name
        if (folder := sockets(application, deployment)) is not None:
            stand_in = None
            if name in stand_ins:
                usual, careful = (
                    partial(_make_adjusted, name, make, application, deployment) for make in stand_ins[name]
                )
                stand_in = StandIn(name, (usual, careful))
            made[name] = DirectEdge(folder, made[name], partial(calls.add, name), cluster, stand_in)
    return made


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

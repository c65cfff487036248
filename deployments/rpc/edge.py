"""How a node in another process is called: by sockets (`direct.py`) or by Serve's handle (`handle.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.contract.nodes import Node
from deployments.observe.metrics import TaggedCounter
from deployments.ray_internals.serve_client import user_config
from deployments.reconfigure import LiveSettings
from deployments.rpc.direct import ClusterSize, DirectEdge
from deployments.rpc.folder import sockets
from deployments.rpc.handle import HandleEdge
from deployments.rpc.stand_in import Factory, StandIn


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
        usual, careful = (partial(_adjusted, name, make, application, deployment) for make in stand_ins)
        stand_in = StandIn(name, (usual, careful))
    return DirectEdge(folder, by_handle, partial(calls.add, name), cluster, stand_in)


def _adjusted(name: str, make: Factory, application: str, deployment: str) -> Node[Any, Any]:
    """Make a node with the settings that Serve gives to the replicas of its deployment."""
    node = make()
    LiveSettings({name: node}).apply({name: user_config(application, deployment)})
    return node

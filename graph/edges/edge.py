"""How a node in another process is called: by sockets (`direct.py`) or by Serve's handle (`handle.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.contract.nodes import Node
from deployments.observe.metrics import TaggedCounter
from graph.edges.direct import ClusterSize, DirectEdge
from graph.edges.folder import sockets
from graph.edges.handle import HandleEdge


def edge(
    name: str, handle: DeploymentHandle[Any], is_direct: bool, calls: TaggedCounter, cluster: ClusterSize
) -> Node[Any, Any]:
    """What calls a separate node, by its sockets on this machine or its handle, and counts calls by node and edge."""
    by_handle = HandleEdge(handle)
    folder = sockets(serve.get_replica_context().app_name, handle.deployment_name) if is_direct else None
    if folder is None:
        return by_handle
    return DirectEdge(folder, by_handle, partial(calls.add, name), cluster)

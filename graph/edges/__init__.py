"""How a node in another process is called: one file for each way."""

from __future__ import annotations

from functools import partial
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.contract.nodes import Node
from deployments.observe.metrics import EdgeMetrics
from graph.edges.direct import DirectEdge
from graph.edges.folder import sockets
from graph.edges.handle import HandleEdge
from graph.edges.settings import Edges


def edge(name: str, handle: DeploymentHandle[Any], way: Edges, metrics: EdgeMetrics) -> Node[Any, Any]:
    """The way to a separate node: its sockets on this machine, and its handle where those don't lead."""
    by_handle: HandleEdge[Any, Any] = HandleEdge(handle)
    folder = sockets(serve.get_replica_context().app_name, handle.deployment_name) if way == "direct" else None
    if folder is None:
        return by_handle
    return DirectEdge(folder, by_handle, partial(metrics.count, name))

"""The parts of the ingress besides its nodes: written where the application is built, read in each replica."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.contract.errors import EnsembleError
from deployments.contract.nodes import Graph, Node
from deployments.cpus import Pinning
from deployments.ingress.access import AccessConfig
from deployments.ingress.protocol import Serves
from deployments.ingress.settings import IngressSettings
from deployments.ingress.single_member import MemberModelInfo

# Every node that the graph is made of, by name.
Nodes = Mapping[str, Node[Any, Any]]


@dataclass(frozen=True)
class BuiltGraph:
    """An application's graph in one process of the ingress.

    Attributes:
        graph: encoded images to answers.
        members: each member as a graph of its own, by name: pixels to answers.
        features: the features that take part, in order.
        left_out: by name, why each member that is left out is not called; features change it.
    """

    graph: Graph
    members: Mapping[str, Graph]
    features: Sequence[Serves]
    left_out: Mapping[str, EnsembleError]


@dataclass(frozen=True)
class IngressSpec:
    """The parts of a replica of the ingress besides its nodes.

    Attributes:
        build: joins the nodes, given them, the application's name, the replica's unique id, and the members' versions.
        settings: the initial settings of the ingress.
        labels: the classes' names, in order of index.
        members: the members that can be asked by themselves, by name.
        services: the service name of each node in a trace, by the name of the node's span.
        protocols: protocols that the configuration names, besides the installed ones.
        edges: how separate nodes are called.
        max_image_bytes: the longest encoded image.
        pinning: the CPUs of the ingress; None for all.
    """

    build: Callable[[Nodes, str, str, dict[str, str]], BuiltGraph]
    settings: IngressSettings
    labels: Sequence[str]
    members: Mapping[str, MemberModelInfo]
    services: Mapping[str, str]
    protocols: Sequence[str]
    edges: str
    access: AccessConfig
    max_image_bytes: int
    pinning: Pinning | None

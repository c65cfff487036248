"""What the ingress is made of besides the nodes, light enough for a process that runs none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployments.contract.nodes import Graph
from deployments.ingress.member import Offer
from deployments.ingress.settings import WITH_PAGE, IngressSettings, PageConfig
from graph.capabilities.capability import Capability, Nodes, Planned
from graph.edges.settings import Edges

# Joins the nodes, as the ensemble asks them, by what the capabilities want.
Compose = Callable[[Nodes, Sequence[Capability]], Graph]


@dataclass(frozen=True)
class Plan:
    """What the ingress is made of besides the nodes.

    Attributes:
        ingress: the ingress' settings.
        class_count: the number of classes.
        services: the service name of each node in a trace, by what it notes.
        compose: joins the nodes, wherever each of them runs.
        capabilities: what the application can do besides.
        edges: how separate nodes are called.
        keys: the file of the API keys; None if all may come in.
        page: whether there is a page, and what it links to.
        strategy: how the members' answers become one, in words, for the page.
        labels: the classes' names, in order of index; without them, their indices are told.
        offers: the members that can be asked by themselves, by name.
    """

    ingress: IngressSettings
    class_count: int
    services: Mapping[str, str]
    compose: Compose
    capabilities: Sequence[Planned] = ()
    edges: Edges = "direct"
    keys: Path | None = None
    page: PageConfig = WITH_PAGE
    strategy: str = ""
    labels: tuple[str, ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)

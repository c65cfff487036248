"""How the nodes are joined: what the door needs to know, light enough for a process that runs none of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deployments.contract.nodes import Graph, Node
from deployments.ingress.member import Offer
from deployments.ingress.page.settings import WITH_PAGE, PageConfig
from deployments.ingress.settings import IngressSettings
from deployments.observe.flows import AuditMetrics, CacheMetrics, follow_strain
from graph.flows.asked import Member
from graph.flows.asking import AskingSettings
from graph.flows.audit import Audit
from graph.flows.cache import Cache, CacheSettings
from graph.flows.cascade import Cascade
from graph.flows.ensemble import Ensemble
from graph.flows.pipeline import Pipeline
from graph.flows.strain import Strain

Edges = Literal["direct", "handle"]
# Every node that the graph is made of, by name.
Nodes = Mapping[str, Node[Any, Any]]
# The deployments that every application has, and the names of their nodes.
INGRESS, TRANSFORMER, COMBINER, LABELER = "Ingress", "JpegTransformer", "Combiner", "Labeler"


@dataclass(frozen=True)
class Plan:
    """What the door is made of besides the nodes.

    Attributes:
        ingress: the ingress' settings.
        class_count: the number of classes.
        services: the service name of each node in a trace, by what it notes.
        compose: joins the nodes, wherever each of them runs.
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
    compose: Callable[[Nodes], Graph]
    edges: Edges = "direct"
    keys: Path | None = None
    page: PageConfig = WITH_PAGE
    strategy: str = ""
    labels: tuple[str, ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)


@dataclass(frozen=True)
class Remembering:
    """What a cache is made of; see `graph.flows.cache.Cache`."""

    settings: CacheSettings
    identity: bytes
    classes: int


def ensemble(pixels: Mapping[str, str], asking: AskingSettings, remembering: Remembering | None, nodes: Nodes) -> Graph:
    """Transformer, members as they are to be asked, combiner, labeler.

    Args:
        pixels: the key of the pixels that each member takes.
        asking: how the members are asked.
        remembering: the cache before them; None for none.
        nodes: every node.
    """
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    flow = _asker(members, asking, nodes[COMBINER])
    if remembering is None:
        return Pipeline(nodes[TRANSFORMER], flow, nodes[LABELER])
    store, counts = remembering.settings.store(), CacheMetrics()
    counts.follow(store)
    said = Pipeline(nodes[TRANSFORMER], flow.ballots)
    cache = Cache(said, store, remembering.identity, remembering.classes, counts)
    return Pipeline(cache, nodes[COMBINER], nodes[LABELER])


def _asker(members: Mapping[str, Member], asking: AskingSettings, combiner: Node[Any, Any]) -> Ensemble | Cascade:
    if asking.cascade is None:
        return Ensemble(members, combiner, asking)
    strain = None
    if asking.under_load is not None:
        strain = Strain(asking.under_load)
        follow_strain(strain)
    order, exit_at, told = asking.cascade.order, asking.cascade.exit_at, asking.cascade.audit
    if told is None:
        return Cascade(members, combiner, asking, strain=strain)
    counts = AuditMetrics(told.at_most)
    audit = Audit(order[:-1], exit_at, told.share, told.at_most, told.tighten, counts)
    counts.follow(audit)
    return Cascade(members, combiner, asking, audit, strain)

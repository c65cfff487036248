"""How the nodes are joined: what the door needs to know, light enough for a process that runs none of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deployments.contract.nodes import Graph, Node
from deployments.contract.rollout import SUFFIX, CanaryConfig
from deployments.ingress.member import Offer
from deployments.ingress.page.settings import WITH_PAGE, PageConfig
from deployments.ingress.settings import IngressSettings
from deployments.observe.flows import AuditMetrics, CacheMetrics, follow_strain
from deployments.observe.rollout import CanaryMetrics
from graph.flows.asked import Member
from graph.flows.asking import AskingSettings
from graph.flows.audit import Audit
from graph.flows.cache import Cache, CacheSettings
from graph.flows.canary import Canary
from graph.flows.cascade import Cascade
from graph.flows.ensemble import Ensemble
from graph.flows.pipeline import Pipeline
from graph.flows.rollout import Rollout
from graph.flows.strain import Strain
from graph.flows.trial import Trial

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


@dataclass(frozen=True)
class Trying:
    """What is tried beside what is served.

    Attributes:
        canaries: by the member's name, the other version of it.
    """

    canaries: Mapping[str, CanaryConfig] = field(default_factory=dict)


def ensemble(
    pixels: Mapping[str, str],
    asking: AskingSettings,
    remembering: Remembering | None,
    nodes: Nodes,
    trying: Trying = Trying(),
) -> Graph:
    """Transformer, members as they are to be asked, combiner, labeler.

    Args:
        pixels: the key of the pixels that each member takes.
        asking: how the members are asked.
        remembering: the cache before them; None for none.
        nodes: every node.
        trying: what is tried beside them.
    """
    trials, nodes = _canaries(trying, asking, nodes)
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    flow = _asker(members, asking, nodes[COMBINER])
    graph: Graph
    if remembering is None:
        graph = Pipeline(nodes[TRANSFORMER], flow, nodes[LABELER])
    else:
        store, counts = remembering.settings.store(), CacheMetrics()
        counts.follow(store)
        said = Pipeline(nodes[TRANSFORMER], flow.ballots)
        cache = Cache(said, store, remembering.identity, remembering.classes, counts)
        graph = Pipeline(cache, nodes[COMBINER], nodes[LABELER])
    return Rollout(graph, trials) if trials else graph


def _canaries(trying: Trying, asking: AskingSettings, nodes: Nodes) -> tuple[list[Trial], Nodes]:
    """The canaries, and the nodes with each of them before its member."""
    if not trying.canaries:
        return [], nodes
    counts = CanaryMetrics()
    trials = [Trial(name, config, counts) for name, config in trying.canaries.items()]
    counts.follow(trials)
    turns = len(asking.cascade.order) if asking.cascade is not None else 1
    both = {
        trial.name: Canary(nodes[trial.name], nodes[f"{trial.name}{SUFFIX}"], trial, asking.patience_ms, turns)
        for trial in trials
    }
    return trials, {**nodes, **both}


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

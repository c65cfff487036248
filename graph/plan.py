"""How the nodes are joined: what the door needs to know, light enough for a process that runs none of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deployments.contract.item import Item
from deployments.contract.member import Agreed
from deployments.contract.nodes import Graph, Node
from deployments.contract.rollout import SUFFIX, CanaryConfig, ShadowSettings
from deployments.ingress.access import Operators
from deployments.ingress.member import Offer
from deployments.ingress.page.settings import WITH_PAGE, PageConfig
from deployments.ingress.settings import IngressSettings
from deployments.members.openvino import OpenVino
from deployments.observe.flows import AuditMetrics, CacheMetrics, follow_strain
from deployments.observe.rollout import CanaryMetrics, FeedbackMetrics, ShadowMetrics
from graph.flows.asked import Member
from graph.flows.asking import AskingSettings
from graph.flows.audit import Audit
from graph.flows.cache import Cache, CacheSettings
from graph.flows.canary import Canary
from graph.flows.cascade import Cascade
from graph.flows.ensemble import Ensemble
from graph.flows.feedback import Book, FeedbackSettings
from graph.flows.pipeline import Pipeline
from graph.flows.rollout import Rollout
from graph.flows.shadow import Shadow, Tap
from graph.flows.strain import Strain
from graph.flows.trial import Trial
from models.sources import Where

Edges = Literal["direct", "handle"]
# Every node that the graph is made of, by name.
Nodes = Mapping[str, Node[Any, Any]]
# The deployments that every application has, and the names of their nodes.
INGRESS, TRANSFORMER, COMBINER, LABELER = "Ingress", "JpegTransformer", "Combiner", "Labeler"


@dataclass(frozen=True)
class Whole:
    """The composed graph.

    Attributes:
        graph: from encoded images to answers.
        rollout: the part of it that tries something, and tells of it; None where nothing is tried.
        knows: whether an image is answered from this process' memory; None where nothing is remembered.
    """

    graph: Graph
    rollout: Rollout | None = None
    knows: Callable[[bytes, Item], bool] | None = None


@dataclass(frozen=True)
class Plan:
    """What the door is made of besides the nodes.

    Attributes:
        ingress: the ingress' settings.
        class_count: the number of classes.
        services: the service name of each node in a trace, by what it notes.
        compose: joins the nodes, wherever each of them runs; a graph alone tries and remembers nothing.
        edges: how separate nodes are called.
        keys: the file of the API keys; None if all may come in.
        page: whether there is a page, and what it links to.
        strategy: how the members' answers become one, in words, for the page.
        labels: the classes' names, in order of index; without them, their indices are told.
        offers: the members that can be asked by themselves, by name.
        loadable: the members that can be loaded and unloaded; None if nobody may.
    """

    ingress: IngressSettings
    class_count: int
    services: Mapping[str, str]
    compose: Callable[[Nodes], Graph | Whole]
    edges: Edges = "direct"
    keys: Path | None = None
    page: PageConfig = WITH_PAGE
    strategy: str = ""
    labels: tuple[str, ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)
    loadable: Loadable | None = None


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
        shadows: by name, how many copies it gets, the key of its pixels, and the member that it is compared with.
        feedback: how many answers are remembered for their labels; None for none.
        labels: the classes' names, in order of index.
    """

    canaries: Mapping[str, CanaryConfig] = field(default_factory=dict)
    shadows: Mapping[str, tuple[ShadowSettings, str, str]] = field(default_factory=dict)
    feedback: FeedbackSettings | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loadable:
    """What can be loaded and unloaded.

    Attributes:
        operators: who may.
        members: by name, the configuration of each such member, and what it has to do with.
        spare: how many members the quorum can do without.
        repository: where their models are.
    """

    operators: Operators
    members: Mapping[str, tuple[OpenVino, Agreed]]
    spare: int
    repository: Where


def ensemble(
    pixels: Mapping[str, str],
    asking: AskingSettings,
    remembering: Remembering | None,
    nodes: Nodes,
    trying: Trying | None = None,
) -> Whole:
    """Transformer, members as they are to be asked, combiner, labeler.

    Args:
        pixels: the key of the pixels that each member takes.
        asking: how the members are asked.
        remembering: the cache before them; None for none.
        nodes: every node.
        trying: what is tried beside them; None for nothing.
    """
    trials, nodes = _canaries(trying, asking, nodes)
    shadows, keys = _shadows(trying, nodes)
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    tap = Tap(keys) if shadows else None
    # A cache remembers what each member says, and leaves it to be combined anew.
    asker = _asker(members, asking, nodes[COMBINER], combined=remembering is None)
    said = Pipeline(nodes[TRANSFORMER], *([] if tap is None else [tap]), asker)
    graph, knows = Pipeline(said, nodes[LABELER]), None
    if remembering is not None:
        store, counts = remembering.settings.store(), CacheMetrics()
        counts.follow(store)
        settings = remembering.settings
        cache = Cache(said, store, remembering.identity, remembering.classes, counts, settings.per_key)
        graph, knows = Pipeline(cache, nodes[COMBINER], nodes[LABELER]), cache.knows
    book = None
    if trying is not None and trying.feedback is not None:
        book = Book(trying.feedback, trying.labels, FeedbackMetrics())
    if not trials and not shadows and book is None:
        return Whole(graph, knows=knows)
    rollout = Rollout(graph, trials, shadows, tap, asking.patience_ms, book)
    return Whole(rollout, rollout, knows)


def _canaries(trying: Trying | None, asking: AskingSettings, nodes: Nodes) -> tuple[list[Trial], Nodes]:
    """The canaries, and the nodes with each of them before its member."""
    if trying is None or not trying.canaries:
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


def _shadows(trying: Trying | None, nodes: Nodes) -> tuple[list[Shadow], list[str]]:
    """The shadows, and the keys of the pixels that they take."""
    if trying is None or not trying.shadows:
        return [], []
    counts = ShadowMetrics()
    made = [
        Shadow(name, Member(nodes[name], key), settings, replaces, counts)
        for name, (settings, key, replaces) in trying.shadows.items()
    ]
    return made, list(dict.fromkeys(key for _, key, _ in trying.shadows.values()))


def _asker(
    members: Mapping[str, Member], asking: AskingSettings, combiner: Node[Any, Any], *, combined: bool
) -> Ensemble | Cascade:
    if asking.cascade is None:
        return Ensemble(members, combiner if combined else None, asking)
    strain = None
    if asking.under_load is not None:
        strain = Strain(asking.under_load)
        follow_strain(strain)
    order, exit_at, told = asking.cascade.order, asking.cascade.exit_at, asking.cascade.audit
    if told is None:
        return Cascade(members, combiner, asking, strain=strain, combined=combined)
    counts = AuditMetrics(told.at_most)
    audit = Audit(order[:-1], exit_at, told.share, told.at_most, told.tighten, counts)
    counts.follow(audit)
    return Cascade(members, combiner, asking, audit, strain, combined=combined)

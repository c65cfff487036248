"""How the nodes are joined, with every capability in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.contract.item import Item
from deployments.contract.nodes import Graph, Node
from graph.capabilities.capability import Capability, Nodes, Site
from graph.flows.ensemble import Ensemble
from graph.flows.intercepted import Intercepted
from graph.flows.member import Member
from graph.flows.patience import AskingSettings
from graph.flows.pipeline import Pipeline
from graph.names import COMBINER, LABELER, TRANSFORMER
from graph.plan import Plan

Knows = Callable[[bytes, Item], bool]


def ensemble(
    pixels: Mapping[str, str], asking: AskingSettings, nodes: Nodes, capabilities: Sequence[Capability] = ()
) -> Graph:
    """Transformer, members, combiner and labeler, with every capability in its place.

    `pixels` has the key of the pixels that each member takes, by the member's name.
    """
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    combiner, labeler = nodes[COMBINER], nodes[LABELER]
    keeping = [each for each in capabilities if each.keeps_predictions]
    combined = not keeping
    askers = (each.asker(members, combiner, combined) for each in capabilities)
    asker = next((asker for asker in askers if asker is not None), None)
    if asker is None:
        asker = Ensemble(members, combiner if combined else None, asking)
    for each in capabilities:
        asker = each.around_asker(asker)
    predicts: Node[Any, Any] = Pipeline(nodes[TRANSFORMER], asker)
    for each in keeping:
        predicts = each.around_predictions(predicts)
    return Pipeline(predicts, labeler) if combined else Pipeline(predicts, combiner, labeler)


@dataclass(frozen=True)
class Joined:
    """An application's graph, from encoded images to answers.

    Attributes:
        nodes: every node by name, for callers of a single one.
        capabilities: what takes part, in order.
    """

    graph: Graph
    nodes: Nodes
    capabilities: tuple[Capability, ...]

    def intercepted(self, graph: Graph, of_member: bool = False) -> Graph:
        """A graph, of the ensemble or of a member that is asked by itself, with the capabilities' interceptors."""
        found = [each.interceptor for each in self.capabilities if each.interceptor is not None]
        interceptors = [each for each in found if each.of_members or not of_member]
        return Intercepted(graph, interceptors) if interceptors else graph

    @property
    def knows(self) -> Knows | None:
        """Whether an image is answered from memory; None where nothing is remembered."""
        keeping = [capability.knows for capability in self.capabilities if capability.keeps_predictions]
        return next(iter(keeping), None)


def join(plan: Plan, placed: Nodes, application: str, replica: str, versions: dict[str, str]) -> Joined:
    """Make the capabilities of a plan, and join the nodes, which are placed already; for `versions` see `Site`."""
    capabilities: list[Capability] = []
    nodes, members = placed, placed
    for capability, settings in plan.capabilities:
        made = capability(plan.config, plan.agreed, Site(application, replica, members, versions, settings))
        nodes = {**nodes, **made.nodes}
        members = {**members, **made.nodes, **made.members}
        capabilities.append(made)
    return Joined(plan.compose(members, capabilities), nodes, tuple(capabilities))

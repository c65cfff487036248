"""The nodes and the capabilities of an application, joined in the process of the ingress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deployments.contract.item import Item
from deployments.contract.nodes import Graph
from graph.capabilities.capability import Capability, Nodes, Site
from graph.flows.intercepted import Intercepted
from graph.plan import Plan

Knows = Callable[[bytes, Item], bool]


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
    for capability in plan.capabilities:
        made = capability(plan.config, plan.agreed, Site(application, replica, members, versions))
        nodes = {**nodes, **made.nodes}
        members = {**members, **made.nodes, **made.members}
        capabilities.append(made)
    return Joined(plan.compose(members, capabilities), nodes, tuple(capabilities))

"""What the ingress is made of besides the nodes: light enough for a process that runs none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deployments.contract.nodes import Graph
from deployments.contract.preprocessing import Preprocessing
from deployments.ingress.member import Offer
from graph.agreement import Agreement
from graph.capabilities.capability import Capability, Nodes
from graph.capabilities.listed import Wanted
from graph.config import EnsembleConfig

# Joins the nodes, and puts every capability in its place.
Compose = Callable[[Nodes, Sequence[Capability]], Graph]


@dataclass(frozen=True)
class Plan:
    """What the ingress is made of besides the nodes.

    Attributes:
        compose: joins the nodes, wherever each of them runs.
        services: the service name of each node in a trace, by what the node notes.
    """

    config: EnsembleConfig
    agreed: Agreement
    compose: Compose
    capabilities: Sequence[Wanted]
    services: Mapping[str, str]

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the members in the answer, by name, as the arguments have them, for the page."""
        return {**dict.fromkeys(self.config.weights, 0.0), **(self.config.combiner.weights or self.config.weights)}

    @property
    def offers(self) -> dict[str, Offer]:
        """The members that can be asked by themselves, by name: those that take pixels."""
        return {
            member.name: Offer(wanted.size, str(self.agreed.versions[member.name] or 1), member.kind)
            for member in self.config.members
            if isinstance(wanted := self.agreed.preprocessing[member.name], Preprocessing)
        }


def strategy(config: EnsembleConfig) -> str:
    """How the members' answers become one, in words, for the page."""
    method, count, cascade = config.combiner.method.replace("_", " "), len(config.voters), config.ensemble.cascade
    together = f"{method} of {count} members, of which {config.ensemble.quorum or count} must answer"
    if cascade is None:
        return together
    first, *others = cascade.order
    turns = (f"then {name} below {below:g}" for name, below in zip(others, cascade.exit_at, strict=True))
    return f"cascade: {', '.join((first, *turns))}; {together}"

"""A capability: what an application can do besides classifying, in a folder of its own.

It is planned once, where the application is built (`graph.app`), and made in each process of the ingress. There it
takes part by the hooks below. Each hook does nothing unless a capability overrides it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.contract.item import Item
from deployments.contract.nodes import Node
from deployments.ingress.extension import Extension
from graph.flows.asked import Member
from graph.flows.intercepted import Interceptor

# Every node that the graph is made of, by name.
Nodes = Mapping[str, Node[Any, Any]]
NO_NODES: Nodes = {}


@dataclass(frozen=True)
class Site:
    """Where a capability is made.

    Attributes:
        application: the Serve application's name.
        replica: the unique id of this replica of the ingress.
        nodes: every node by name, as the capabilities before have left it where the ensemble asks it.
        versions: by name, the version that each member serves; who changes one notes it here.
    """

    application: str
    replica: str
    nodes: Nodes
    versions: dict[str, str]


class Capability(Extension):
    """Takes part in an application.

    Attributes:
        nodes: what takes the place of nodes, by name, whoever asks them.
        members: what takes their place where the ensemble asks them.
        keeps_predictions: whether it needs what each member predicts, and not only what that is combined to.
        interceptor: looks at batches on their way in and out; None for nothing.
        live: what can change while it serves, by a name that no node has.
        sections: for each section of `user_config`, its name in `live`, or with a dot at its end what the names in it
            begin with.
        handles: methods for callers with a handle, by name.
    """

    nodes: Nodes = NO_NODES
    members: Nodes = NO_NODES
    keeps_predictions = False
    interceptor: Interceptor | None = None
    live: Mapping[str, Any] = {}
    sections: Mapping[str, str] = {}
    handles: Mapping[str, Callable[..., Awaitable[Any]]] = {}

    def asker(self, members: Mapping[str, Member], combiner: Node[Any, Any], combined: bool) -> Node[Any, Any] | None:
        """What asks the members, in place of all of them side by side; None for no other way.

        Args:
            members: by name.
            combiner: combines what they predict.
            combined: whether the predictions are to be given combined, or by member.
        """
        return None

    def around_asker(self, asker: Node[Any, Any]) -> Node[Any, Any]:
        """What takes the place of what asks the members: pixels by preprocessing to predictions."""
        return asker

    def around_predictions(self, predicts: Node[Any, Any]) -> Node[Any, Any]:
        """What takes the place of transformer and members: encoded images to each member's predictions.

        Asked of who keeps predictions.
        """
        return predicts

    def knows(self, image: bytes, item: Item) -> bool:
        """Whether an image is answered from this process' memory, so that it need not wait for others."""
        return False

    async def check_health(self) -> None:
        """Raise if it can't work any more; Serve asks again and again."""


# Makes a capability where it takes part.
Planned = Callable[[Site], Capability]

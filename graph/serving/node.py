"""The deployment that a separate node runs in."""

from __future__ import annotations

from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.nodes import Watched
from deployments.observe.metrics import report_state
from graph.live import LiveSettings


class NodeDeployment:
    """Runs one node."""

    def __init__(self, name: str, make: Any) -> None:
        """Make the node here, in the replica."""
        self._name = name
        self.node = make()
        self._settings = LiveSettings({name: self.node})
        report_state({name: self.node})

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Whatever the node takes and returns."""
        answer: Batch[Any] = await self.node(batch)
        return answer

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the fields of the node's settings."""
        self._settings.apply({self._name: user_config})

    def check_health(self) -> None:
        """Raise if the node says that it can't work any more."""
        if isinstance(self.node, Watched):
            self.node.check_health()

"""One node after another."""

from __future__ import annotations

from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.nodes import Node


class Pipeline:
    """Nodes in a row, each taking what the one before gives; where no image is left, the rest are not asked."""

    def __init__(self, *nodes: Node[Any, Any]) -> None:
        """Set the nodes, in order."""
        self._nodes = nodes

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """What the last makes of what the others have made of it."""
        for node in self._nodes:
            batch = await node(batch)
            if not batch.live:
                return Batch([], batch.items)
        return batch

"""One node after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.nodes import Leave, Node, Parted


class Pipeline:
    """Nodes in a row, each taking what the one before gives; where no image is left, the rest are not asked."""

    def __init__(self, *nodes: Node[Any, Any]) -> None:
        """Set the nodes, in order."""
        self._nodes = nodes

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """What the last makes of what the others have made of it."""
        return await _through(self._nodes, batch)

    async def parts(self, batch: Batch[Any], leave: Leave) -> None:
        """The same, but images that leave a node before others pass the rest of the nodes before them, too."""
        number = next((number for number, node in enumerate(self._nodes) if isinstance(node, Parted)), None)
        if number is None:
            await leave(range(len(batch.items)), await self(batch))
            return
        parted = self._nodes[number]
        assert isinstance(parted, Parted)

        async def on(positions: Sequence[int], part: Batch[Any]) -> None:
            await leave(positions, await _through(self._nodes[number + 1 :], part))

        come = await _through(self._nodes[:number], batch)
        if come.live:
            await parted.parts(come, on)
        else:
            await leave(range(len(come.items)), come)


async def _through(nodes: Sequence[Node[Any, Any]], batch: Batch[Any]) -> Batch[Any]:
    for node in nodes:
        if not batch.live:
            break
        batch = await node(batch)
    return batch if batch.live else Batch([], batch.items)

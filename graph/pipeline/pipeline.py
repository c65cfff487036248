"""One node after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.nodes import InParts, Node, Part, parts


class Pipeline(InParts):
    """Nodes in a row, each of which takes what the one before returns. Without a live image the rest are not called."""

    def __init__(self, *nodes: Node[Any, Any]) -> None:
        self._nodes = nodes

    def parts(self, batch: Batch[Any]) -> AsyncIterator[Part]:
        """What the last node returns; images that one node returns before others pass the rest before them, too."""
        return _through(self._nodes, range(len(batch.items)), batch)


async def _through(nodes: Sequence[Node[Any, Any]], positions: Sequence[int], batch: Batch[Any]) -> AsyncIterator[Part]:
    if not nodes or not batch.live:
        yield positions, batch if batch.live else Batch([], batch.items)
        return
    first, *rest = nodes
    async for places, part in parts(first, batch):
        async for whole in _through(rest, [positions[place] for place in places], part):
            yield whole

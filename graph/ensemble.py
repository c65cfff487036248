"""The graph itself: which node's output goes where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from graph.batch import Batch, Classification

# A node, wherever it runs: in this process, or in a deployment of its own behind a handle.
Node = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Ensemble:
    """Transformer, members side by side, combiner, labeler."""

    transformer: Node
    members: dict[str, Node]
    combiner: Node
    labeler: Node

    async def __call__(self, images: Batch[list[bytes]]) -> Batch[list[Classification]]:
        """Encoded images to classifications; a request that fails on the way carries its error to the end."""
        pixels = await self.transformer(images)
        if not pixels.live:
            return Batch([], pixels.requests, pixels.errors, timings=pixels.timings)
        outputs = await asyncio.gather(*(member(pixels) for member in self.members.values()))
        combined = await self.combiner(dict(zip(self.members, outputs, strict=True)))
        labelled: Batch[list[Classification]] = await self.labeler(combined)
        return labelled

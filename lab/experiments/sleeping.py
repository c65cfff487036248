"""An application whose member waits instead of computing, so that replicas add capacity on a machine of few cores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ray.serve import Application

from deployments.contract.batch import Batch
from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.nodes import Graph, Node
from deployments.contract.payload import PixelSets
from deployments.serving.spec import Nodes
from graph.app import application
from graph.config import parse
from graph.features.feature import Feature
from graph.pipeline.member_client import Member
from graph.pipeline.pipeline import Ensemble, Pipeline
from graph.signature import resolve_signatures

# Of an image; images wait for each other, as they do for a member's threads.
SLEEP_S = 0.02


class Sleeping:
    """An ensemble that takes as long as a slow one, and no CPU time for it."""

    def __init__(self, ensemble: Node[Any, Any]) -> None:
        """Set what answers in the end."""
        self._ensemble, self._turn = ensemble, asyncio.Lock()

    async def __call__(self, batch: Batch[PixelSets]) -> Batch[Any]:
        """Predict from pixels, one batch after the other."""
        async with self._turn:
            await asyncio.sleep(SLEEP_S * len(batch.items))
        return await self._ensemble(batch)


def compose(pixels: Mapping[str, str], nodes: Nodes, _: Sequence[Feature]) -> Graph:
    """Join transformer, the sleeping ensemble and labeler."""
    members = {name: Member(nodes[name], key) for name, key in pixels.items()}
    return Pipeline(nodes[TRANSFORMER], Sleeping(Ensemble(members, nodes[COMBINER])), nodes[LABELER])


def build(args: dict[str, Any]) -> Application:
    """Build the application of `import_path: lab.experiments.sleeping:build`."""
    config = parse(args)
    agreed = resolve_signatures(config)
    return application(config, agreed, partial(compose, agreed.pixels))

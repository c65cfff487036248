"""The graph with what is tried in it: decides what is tried on which image, and tells what came of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE
from deployments.contract.item import Item
from deployments.contract.nodes import Graph
from graph.flows.trial import Trial

logger = logging.getLogger("ray.serve")

# Where the settings of canaries are in `user_config`.
CANARIES = "canaries"


def live_name(member: str) -> str:
    """What the settings of a member's canary are called."""
    return f"{CANARIES}.{member}"


class Rollout:
    """Marks images on their way in, and looks at the answers on their way out.

    Attributes:
        live: what can change while it serves, by its name.
        headers: those of a request that decide something.
    """

    def __init__(self, graph: Graph, trials: Sequence[Trial]) -> None:
        """Set the graph, and the canaries in it."""
        self._graph, self._trials = graph, trials
        self.live: Mapping[str, Any] = {live_name(trial.name): trial for trial in trials}
        self.headers = tuple(dict.fromkeys(trial.header for trial in trials if trial.header is not None))

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Encoded images to answers."""
        rows = dict(zip(batch.live, batch.payload, strict=True))
        marked = Batch(batch.payload, tuple(self._marked(item, rows.get(p, b"")) for p, item in enumerate(batch.items)))
        answer = await self._graph(marked)
        try:
            self._look(answer)
        except Exception:
            # The answers are there, whatever becomes of what is told of them.
            logger.exception("what is tried can't be told of")
        return answer

    def _marked(self, item: Item, image: bytes) -> Item:
        """An image as it is to be treated; what warms members up never waited, and nothing is tried on it."""
        if item.error is not None or not item.queued_ns:
            return item
        trials = tuple(trial.name for trial in self._trials if trial.takes(image, item.by))
        # Who asks is nobody's business further on.
        return replace(item, trials=trials, by=ANYONE) if trials or item.by is not ANYONE else item

    def _look(self, answer: Batch[Sequence[Answer]]) -> None:
        for position, told in zip(answer.live, answer.payload, strict=True):
            item, index = answer.items[position], told.classification.index
            for trial in self._trials:
                if (vote := item.votes.get(trial.name)) is not None:
                    trial.voted(trial.name in item.trials, item.versions.get(trial.name), vote.index == index)

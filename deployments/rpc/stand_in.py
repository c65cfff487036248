"""A stand-in works in the ingress in place of a separate node of which no replica answers."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.nodes import Node

logger = logging.getLogger("ray.serve")

# After this time without a batch a stand-in is made anew, because its settings may have changed.
IDLE_S = 1.0
Factory = Callable[[], Node[Any, Any]]


class StandIn:
    """Works on batches in place of a separate node."""

    def __init__(self, name: str, makes: tuple[Factory, Factory]) -> None:
        """Set the node's name, and two factories of such a node: the usual one, and one with care for suspects."""
        self._name, self._makes = name, makes
        self._made: dict[bool, asyncio.Future[Node[Any, Any]]] = {}
        self._called = 0.0

    async def __call__(self, batch: Batch[Any], is_suspect: bool) -> Batch[Any]:
        """Work on a batch; with care if it may have ended a replica. Raises what the making of the node raised."""
        idle_s, self._called = time.monotonic() - self._called, time.monotonic()
        if idle_s > IDLE_S:
            self._made = {}
        if not self._made:
            logger.warning("no replica of %s answers; the ingress does its work until one does", self._name)
        if is_suspect not in self._made:
            self._made[is_suspect] = asyncio.ensure_future(asyncio.to_thread(self._makes[is_suspect]))
        try:
            node = await asyncio.shield(self._made[is_suspect])
        except Exception:
            self._made.pop(is_suspect, None)
            raise
        return await node(batch)

    def end(self) -> None:
        """Forget the nodes, if any were made, because a replica has answered."""
        if self._made:
            logger.warning("a replica of %s answers again", self._name)
            self._made = {}

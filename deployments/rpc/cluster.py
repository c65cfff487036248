"""Other machines of the cluster: whether there are any."""

import asyncio
import logging

import ray

logger = logging.getLogger("ray.serve")

COUNT_EVERY_S = 10.0


class ClusterSize:
    """Counts the machines of the cluster in the background; all edges of a process share one.

    Attributes:
        is_alone: whether this was the only live Ray node at the last count; None before the first count.
    """

    def __init__(self) -> None:
        self.is_alone: bool | None = None
        self._counting = asyncio.get_event_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            try:
                # It asks another process and waits for the answer.
                nodes = await asyncio.to_thread(ray.nodes)
                self.is_alone = sum(node["Alive"] for node in nodes) <= 1
            except Exception:
                logger.exception("the nodes of the cluster can't be counted")
            await asyncio.sleep(COUNT_EVERY_S)

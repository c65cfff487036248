"""Other machines of the cluster: whether there are any, and whether a batch is answered sooner there."""

import asyncio
import logging

import ray

logger = logging.getLogger("ray.serve")

COUNT_EVERY_S = 10.0
# The weight of the newest measurement in an average. Elsewhere, a longer time than the average replaces it: a busy
# machine is believed at once, and an idle one after some batches, as in the "peak EWMA" of Finagle and Linkerd.
NEWEST = 0.2
# One of so many batches that would wait here goes to another machine even if that took longer before: it may have
# become idle. At 2 %, both machines loaded alike keep well over 95 % of their calls.
PROBE_EVERY = 50
# Another machine must save a fifth of the time, so that differences by chance move nothing.
WORTH = 0.8


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


class Locality:
    """Compares the time that a batch takes on this machine, by how many are ahead of it, with the time elsewhere."""

    def __init__(self) -> None:
        self._turn_s = self._elsewhere_s = float("inf")
        self._waited = PROBE_EVERY - 1

    def stays(self, ahead: int) -> bool:
        """Return whether a batch stays here; the least busy replica still works on `ahead` of this process' batches."""
        if ahead == 0:
            return True
        self._waited += 1
        if self._waited % PROBE_EVERY == 0:
            return False
        return self._elsewhere_s >= WORTH * self._turn_s * (ahead + 1)

    def took_here(self, seconds: float, ahead: int) -> None:
        """Measure a batch that stayed."""
        self._turn_s = _average(self._turn_s, seconds / (ahead + 1))

    def took_elsewhere(self, seconds: float) -> None:
        """Measure a batch that went to another machine; infinite seconds for one that failed."""
        self._elsewhere_s = max(seconds, _average(self._elsewhere_s, seconds))


def _average(before: float, newest: float) -> float:
    infinite = float("inf") in (before, newest)
    return newest if infinite else before + NEWEST * (newest - before)

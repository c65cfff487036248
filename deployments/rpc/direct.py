"""Calls to a node in another process of this machine, by Unix sockets.

A call by Serve's handle costs milliseconds whatever it carries; one by a Unix socket costs a few hundredths of a
millisecond. Serve still places, starts, scales, restarts and rolls out the replicas. Their sockets show which of them
are on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, NoReplica
from deployments.contract.nodes import Node
from deployments.rpc.replica import Replica, ReplicaGone
from deployments.rpc.wire import VERSION

logger = logging.getLogger("ray.serve")

LOOK_EVERY_S = 0.2
COUNT_NODES_EVERY_S = 10.0
# A batch that ends every replica that works on it must not end all of them.
TRIES = 2
# After this time without a batch a stand-in is made anew, because its settings may have changed.
IDLE_S = 1.0
Factory = Callable[[], Node[Any, Any]]
# The weight of the newest measurement in an average. Elsewhere, a longer time than the average replaces it: a busy
# machine is believed at once, and an idle one after some batches, as in the "peak EWMA" of Finagle and Linkerd.
NEWEST = 0.2
# One of so many batches that would wait here goes to another machine even if that took longer before: it may have
# become idle. At 2 %, both machines loaded alike keep well over 95 % of their calls.
PROBE_EVERY = 50
# Another machine must save a fifth of the time, so that differences by chance move nothing.
WORTH = 0.8


class LocalReplicas:
    """The replicas on this machine whose sockets are in a folder, by the sockets' names."""

    def __init__(self, folder: Path, own: str = "") -> None:
        """Set the folder, and the name of the caller's own socket if it has one there."""
        self._folder, self._own = folder, own
        self._looked = float("-inf")
        self._found: dict[str, Replica] = {}

    @property
    def connections(self) -> int:
        """The number of open connections; from any thread."""
        return sum(replica.connections for replica in list(self._found.values()))

    def look(self) -> dict[str, Replica]:
        """Find the replicas; reads the folder in each call while there are none, otherwise every `LOOK_EVERY_S`."""
        now = time.monotonic()
        if self._found and now < self._looked + LOOK_EVERY_S:
            return self._found
        self._looked = now
        try:
            names = {path.name for path in self._folder.iterdir() if path.suffix == f".{VERSION}"} - {self._own}
        except OSError:
            names = set()
        for name in self._found.keys() - names:
            self.forget(name)
        for name in sorted(names - self._found.keys()):
            self._found[name] = Replica(self._folder / name)
        return self._found

    def look_awake(self) -> dict[str, Replica]:
        """Find the replicas that are not frozen."""
        return {name: replica for name, replica in self.look().items() if not replica.is_frozen}

    def forget(self, name: str) -> None:
        """Close the connections to a replica; it is found again if its socket is still there."""
        if (replica := self._found.pop(name, None)) is not None:
            replica.close()


class ClusterSize:
    """Counts the machines of the cluster in the background; all edges of a process share one."""

    def __init__(self) -> None:
        self._is_alone: bool | None = None
        self._counted = float("-inf")
        self._counting: asyncio.Future[None] | None = None

    def is_alone(self) -> bool | None:
        """Return whether this was the only live Ray node at the last count; None before the first count."""
        if time.monotonic() >= self._counted + COUNT_NODES_EVERY_S:
            self._counted = time.monotonic()
            self._counting = asyncio.ensure_future(self._count())
        return self._is_alone

    async def _count(self) -> None:
        try:
            # It asks another process and waits for the answer.
            nodes = await asyncio.to_thread(ray.nodes)
        except Exception:
            logger.exception("the nodes of the cluster can't be counted")
            return
        self._is_alone = sum(node["Alive"] for node in nodes) <= 1


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
        """Forget the nodes, because a replica has answered."""
        if self._made:
            logger.warning("a replica of %s answers again", self._name)
            self._made = {}


class DirectEdge:
    """A node behind Unix sockets, and behind its handle where none is on this machine or another one answers sooner."""

    def __init__(
        self,
        folder: Path,
        handle: Node[Any, Any],
        count: Callable[[str], None],
        cluster: ClusterSize,
        stand_in: StandIn | None = None,
    ) -> None:
        """Set the sockets' folder, the handle's node, the counter of calls, the cluster, and the node's stand-in.

        Calls are counted by `direct`, `handle` or `inline`, the last of which is the stand-in.
        """
        self._replicas, self._cluster = LocalReplicas(folder), cluster
        self._handle, self._count, self._stand_in = handle, count, stand_in
        self._locality = Locality()
        self._waking: asyncio.Future[Batch[Any]] | None = None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._replicas.connections

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Send the batch to the replica with the fewest calls in flight; if that dies, once more to another one.

        Raises:
            NoReplica: no replica is running that could take the batch, and no image of it waits until one is.
            EnsembleError: the node failed.
        """
        sent = batch.outbound()
        gone, is_suspect = set(), False
        for _ in range(TRIES):
            name, replica = self._choose()
            if replica is None:
                break
            try:
                answer = await self._call_here(replica, sent)
            except ReplicaGone as err:
                gone.add(name)
                is_suspect |= not replica.is_frozen and err.__cause__ is None
                if self._replicas.look_awake().get(name) is replica:
                    self._replicas.forget(name)
                continue
            return answer.after(batch)
        # A process that is being killed may accept a connection after it has closed others.
        is_left_alone = self._replicas.look_awake().keys() <= gone and self._cluster.is_alone()
        if is_left_alone and self._stand_in is not None:
            self._wake(batch)
            self._count("inline")
            return await self._stand_in(batch, is_suspect)
        if is_left_alone and not any(item.waits_for_replica for item in batch.items):
            raise NoReplica("no replica of it answers; Serve starts another")
        return await self._call_elsewhere(batch)

    async def _call_here(self, replica: Replica, sent: Batch[Any]) -> Batch[Any]:
        """Call a replica on this machine, and measure the call; raises as `Replica.call` does."""
        ahead, began = replica.in_flight, time.monotonic()
        try:
            answer = await replica.call(sent)
        except EnsembleError:
            self._count("direct")
            raise
        self._count("direct")
        self._locality.took_here(time.monotonic() - began, ahead)
        if self._stand_in is not None:
            self._stand_in.end()
        return answer

    def _wake(self, batch: Batch[Any]) -> None:
        """Call by handle, because Serve starts the first replica of a node that scales to zero only then."""
        if not self._replicas.look() and (self._waking is None or self._waking.done()):
            self._waking = asyncio.ensure_future(self._handle(batch))
            # Nobody waits for the answer.
            self._waking.add_done_callback(lambda call: call.cancelled() or call.exception())

    async def _call_elsewhere(self, batch: Batch[Any]) -> Batch[Any]:
        """Call by handle, and measure the call."""
        self._count("handle")
        began = time.monotonic()
        try:
            answer = await self._handle(batch)
        except Exception:
            self._locality.took_elsewhere(float("inf"))
            raise
        self._locality.took_elsewhere(time.monotonic() - began)
        return answer

    def _choose(self) -> tuple[str, Replica | None]:
        """Choose the replica to call; None for the handle, if no replica is here, or another machine answers sooner."""
        is_alone = self._cluster.is_alone()
        replicas, awake = self._replicas.look(), self._replicas.look_awake()
        name = min(awake, key=lambda name: awake[name].in_flight, default="")
        replica = awake.get(name)
        if replica is not None:
            del replicas[name]
            # To the end: of those with equally few calls, the next is the one that was called least recently.
            replicas[name] = replica
            if is_alone is False and not self._locality.stays(replica.in_flight):
                return name, None
        return name, replica

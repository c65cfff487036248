"""Calls to a node in another process of this machine, by Unix sockets.

A call by Serve's handle costs milliseconds whatever it carries; one by a Unix socket costs a few hundredths of a
millisecond. Serve still places, starts, scales, restarts and rolls out the replicas. Their sockets show which of them
are on this machine.
"""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, NoReplica
from deployments.contract.nodes import Node
from deployments.rpc.cluster import ClusterSize
from deployments.rpc.replica import LocalReplicas, Replica, ReplicaGone
from deployments.rpc.stand_in import StandIn

# A batch that ends every replica that works on it must not end all of them.
TRIES = 2


class DirectEdge:
    """A node behind Unix sockets, and behind its handle while no replica on this machine answers."""

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
        gone, is_suspect = set[str](), False
        for _ in range(TRIES):
            if (replica := self._choose()) is None:
                break
            try:
                answer = await replica.call(sent)
            except ReplicaGone as err:
                gone.add(replica.name)
                is_suspect |= not replica.is_frozen and err.__cause__ is None
                self._forget(replica)
                continue
            except EnsembleError:
                self._count("direct")
                raise
            self._count("direct")
            if self._stand_in is not None:
                self._stand_in.end()
            return answer.after(batch)
        return await self._answer_elsewhere(batch, gone, is_suspect)

    def _choose(self) -> Replica | None:
        """Choose the replica to call; None if none is here."""
        replicas = self._replicas.look()
        awake = [replica for replica in replicas.values() if not replica.is_frozen]
        if not awake:
            return None
        replica = min(awake, key=attrgetter("in_flight"))
        # To the end: of those with equally few calls, the next is the one that was called least recently.
        replicas[replica.name] = replicas.pop(replica.name)
        return replica

    def _forget(self, replica: Replica) -> None:
        """Close the connections to a replica that is gone, unless it is frozen, or another one has its name."""
        if not replica.is_frozen and self._replicas.look().get(replica.name) is replica:
            self._replicas.forget(replica.name)

    async def _answer_elsewhere(self, batch: Batch[Any], gone: set[str], is_suspect: bool) -> Batch[Any]:
        """Call by handle; if no replica is anywhere, work in place of the node, or wait; raises as `__call__` does."""
        # A process that is being killed may accept a connection after it has closed others.
        others = [each for name, each in self._replicas.look().items() if name not in gone and not each.is_frozen]
        if others or not self._cluster.is_alone:
            return await self._call_by_handle(batch)
        if self._stand_in is not None:
            self._wake(batch)
            self._count("inline")
            return await self._stand_in(batch, is_suspect)
        if not any(item.waits_for_replica for item in batch.items):
            raise NoReplica("no replica of it answers; Serve starts another")
        return await self._call_by_handle(batch)

    def _wake(self, batch: Batch[Any]) -> None:
        """Call by handle, because Serve starts the first replica of a node that scales to zero only then."""
        if not self._replicas.look() and (self._waking is None or self._waking.done()):
            self._waking = asyncio.ensure_future(self._handle(batch))
            # Nobody waits for the answer.
            self._waking.add_done_callback(lambda call: call.cancelled() or call.exception())

    async def _call_by_handle(self, batch: Batch[Any]) -> Batch[Any]:
        """Call by handle, and count the call."""
        self._count("handle")
        return await self._handle(batch)

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import ray

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, NoReplica, error_by_code
from deployments.contract.nodes import Node
from graph.edges.frames import Frames
from graph.edges.locality import Locality
from graph.edges.wire import ANSWER, CALL, CLOSING, VERSION, Body, Buffer, decode, encode

logger = logging.getLogger("ray.serve")

Reply = tuple[int, bytes, Body]

LOOK_EVERY_S = 0.2
COUNT_NODES_EVERY_S = 10.0
# A batch that ends every replica that works on it must not end all of them.
TRIES = 2


class ReplicaGone(ConnectionError):
    """The replica closed the connection: it has died, or is about to stop."""


class Connection(Frames):
    """A connection to a replica, with one call at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = True
        self._reply: asyncio.Future[Reply] | None = None

    async def call(self, header: bytes, buffers: list[Buffer]) -> Reply:
        """Send a batch and wait for the reply; raises ReplicaGone if the connection ends."""
        if not self.alive:
            raise ReplicaGone
        self._reply = asyncio.get_running_loop().create_future()
        try:
            self.send(CALL, header, buffers)
            return await self._reply
        except BaseException:
            # The node would go on working for nobody while the next batch waits.
            self.abort()
            raise
        finally:
            self._reply = None

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """Take the reply."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((kind, header, body))

    def lost(self) -> None:
        """End the call."""
        self.alive = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ReplicaGone())


class Replica:
    """A replica on this machine, with the number of its calls in flight."""

    def __init__(self, path: Path) -> None:
        self.in_flight = 0
        self._path = path
        self._idle: list[Connection] = []
        self._closed = False

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._idle) + self.in_flight

    async def call(self, batch: Batch[Any]) -> Batch[Any]:
        """The node's answer to a batch.

        Raises:
            ReplicaGone: the replica has died or is stopping; another one may take the batch.
            EnsembleError: the node failed.
        """
        header, buffers = encode(batch)
        self.in_flight += 1
        try:
            connection = await self._connection()
            kind, answer, body = await connection.call(header, buffers)
        finally:
            self.in_flight -= 1
        if kind == CLOSING or self._closed:
            connection.abort()
        else:
            self._idle.append(connection)
        if kind == CLOSING:
            raise ReplicaGone
        if kind == ANSWER:
            return decode(answer, body)
        raise (
            error_by_code(**msgspec.json.decode(answer))
            if answer
            else RuntimeError("a node failed; its log has the cause")
        )

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        connection = Connection()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(self._path))
        except OSError as err:
            if isinstance(err, ConnectionRefusedError):
                # The socket of a process that was killed refuses connections.
                with suppress(OSError):
                    self._path.unlink()
            raise ReplicaGone from err
        return connection

    def close(self) -> None:
        """Close the idle connections now, and the others after their calls."""
        self._closed = True
        for connection in self._idle:
            connection.abort()


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
        """The replicas. The folder is read in every call while there are none, otherwise every `LOOK_EVERY_S`."""
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

    def forget(self, name: str) -> None:
        """Close the connections to a replica; it is found again if its socket is still there."""
        if (replica := self._found.pop(name, None)) is not None:
            replica.close()


class ClusterSize:
    """Whether this machine is the whole cluster, counted in the background; all edges of a process share one."""

    def __init__(self) -> None:
        self._is_alone: bool | None = None
        self._counted = float("-inf")
        self._counting: asyncio.Future[None] | None = None

    def is_alone(self) -> bool | None:
        """Whether this was the only live Ray node at the last count; None before the first one."""
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


class DirectEdge:
    """A node behind Unix sockets, and behind its handle where none is on this machine or another one answers sooner."""

    def __init__(
        self, folder: Path, handle: Node[Any, Any], count: Callable[[str], None], cluster: ClusterSize
    ) -> None:
        """Set the sockets' folder, the handle's node, what counts calls by `direct` or `handle`, and the cluster."""
        self._replicas, self._cluster = LocalReplicas(folder), cluster
        self._handle, self._count = handle, count
        self._locality = Locality()

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
        gone = set()
        for _ in range(TRIES):
            name, replica = self._choose()
            if replica is None:
                break
            ahead, began = replica.in_flight, time.monotonic()
            try:
                answer = await replica.call(sent)
            except ReplicaGone:
                gone.add(name)
                if self._replicas.look().get(name) is replica:
                    self._replicas.forget(name)
                continue
            except EnsembleError:
                self._count("direct")
                raise
            self._count("direct")
            self._locality.took_here(time.monotonic() - began, ahead)
            return answer.after(batch)
        # A process that is being killed may accept a connection after it has closed others.
        is_none = self._replicas.look().keys() <= gone
        if is_none and self._cluster.is_alone() and not any(item.waits_for_replica for item in batch.items):
            raise NoReplica("no replica of it is running; Serve starts another")
        self._count("handle")
        return await self._call_elsewhere(batch)

    async def _call_elsewhere(self, batch: Batch[Any]) -> Batch[Any]:
        began = time.monotonic()
        try:
            answer = await self._handle(batch)
        except Exception:
            self._locality.took_elsewhere(float("inf"))
            raise
        self._locality.took_elsewhere(time.monotonic() - began)
        return answer

    def _choose(self) -> tuple[str, Replica | None]:
        """The replica to call; None for the handle, where there is none, or another machine answers sooner."""
        is_alone = self._cluster.is_alone()
        replicas = self._replicas.look()
        name = min(replicas, key=lambda name: replicas[name].in_flight, default="")
        replica = replicas.pop(name, None)
        if replica is not None:
            # To the end: of those with equally few calls, the next is the one that was called least recently.
            replicas[name] = replica
            if is_alone is False and not self._locality.stays(replica.in_flight):
                return name, None
        return name, replica

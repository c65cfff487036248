"""A node behind Unix sockets: the way between processes of one machine.

A Serve handle's call costs milliseconds whatever it carries; a Unix socket's costs a few hundredths. Serve still
places, starts, scales, restarts and rolls out the replicas. Which of them are here, their sockets tell.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import ray

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError, NoReplica, by_code
from deployments.contract.nodes import Node
from graph.edges.frames import Frames
from graph.edges.wire import ANSWER, CALL, CLOSING, FAILURE, VERSION, Body, decode, encode

logger = logging.getLogger("ray.serve")

P = TypeVar("P")
Q = TypeVar("Q")

LOOK_EVERY_S = 0.2
COUNT_NODES_EVERY_S = 10.0
# With so many calls under way a replica is full, where other machines could take the next.
FULL = 1
TRIES = 2


class GoneError(ConnectionError):
    """The replica's end closed: it has died, or is about to stop."""


class Connection:
    """One connection to a replica, with one call at a time."""

    def __init__(self) -> None:
        """Begin unconnected."""
        self.frames = Frames(self)
        self._answer: asyncio.Future[tuple[int, bytes, Body]] | None = None
        self.alive = True

    async def call(self, header: bytes, buffers: list[Any]) -> tuple[int, bytes, Body]:
        """Send a batch, wait for the reply; raises GoneError if the connection ends."""
        if not self.alive:
            raise GoneError
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self.frames.send(CALL, header, buffers)
            return await self._answer
        except BaseException:
            # Or the node would work on for nobody, while the next batch waits.
            self.frames.abort()
            raise
        finally:
            self._answer = None

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """Hand on the reply."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((kind, header, body))

    def lost(self) -> None:
        """Tell who waits."""
        self.alive = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(GoneError())


class Replica:
    """A replica on this machine."""

    def __init__(self, path: Path) -> None:
        """Set its socket."""
        self._path = path
        self._idle: list[Connection] = []
        self._closed = False
        self.under_way = 0

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._idle) + self.under_way

    async def call(self, batch: Batch[Any]) -> Batch[Any]:
        """The node's answer to a batch.

        Raises:
            GoneError: the replica has died or is stopping; the batch may be asked of another.
            EnsembleError: the node failed.
        """
        header, buffers = encode(batch)
        self.under_way += 1
        try:
            connection = await self._connection()
            kind, answer, body = await connection.call(header, buffers)
        finally:
            self.under_way -= 1
        if kind == CLOSING or self._closed:
            connection.frames.abort()
        else:
            self._idle.append(connection)
        if kind == CLOSING:
            raise GoneError
        if kind == ANSWER:
            return decode(answer, body)
        assert kind == FAILURE
        raise by_code(**msgspec.json.decode(answer)) if answer else RuntimeError("a node failed; its log has the cause")

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        connection = Connection()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection.frames, str(self._path))
        except OSError as err:
            if isinstance(err, ConnectionRefusedError):
                # What a killed process leaves refuses at once.
                with suppress(OSError):
                    self._path.unlink()
            raise GoneError from err
        return connection

    def close(self) -> None:
        """Close what is open, once it is idle."""
        self._closed = True
        for connection in self._idle:
            connection.frames.abort()


class Nearby:
    """The replicas on this machine whose sockets are in a folder, by the names of those."""

    def __init__(self, folder: Path, own: str = "") -> None:
        """Set the folder, and the name of the socket in it that is the caller's own."""
        self._folder, self._own = folder, own
        self._looked = float("-inf")
        self.replicas: dict[str, Replica] = {}

    def look(self) -> dict[str, Replica]:
        """Which there are: looked for at every call for as long as there are none, else every so often."""
        now = time.monotonic()
        if self.replicas and now < self._looked + LOOK_EVERY_S:
            return self.replicas
        self._looked = now
        try:
            names = {path.name for path in self._folder.iterdir() if path.suffix == f".{VERSION}"} - {self._own}
        except OSError:
            names = set()
        for name in self.replicas.keys() - names:
            self.forget(name)
        for name in sorted(names - self.replicas.keys()):
            self.replicas[name] = Replica(self._folder / name)
        return self.replicas

    def forget(self, name: str) -> None:
        """Close what is open to a replica; it is found again if its socket is there."""
        if (replica := self.replicas.pop(name, None)) is not None:
            replica.close()


class DirectEdge(Generic[P, Q]):
    """A node in other processes of this machine; through its handle where none is here, or all are full."""

    def __init__(self, folder: Path, handle: Node[P, Q], count: Callable[[str], None]) -> None:
        """Set the folder of the sockets, the way by handle, and who counts the calls by their way."""
        self._nearby, self._handle, self._count = Nearby(folder), handle, count
        self._counted = float("-inf")
        # Nothing is known until they have been counted.
        self._alone: bool | None = None
        self._counting: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(replica.connections for replica in self._nearby.replicas.values())

    async def __call__(self, batch: Batch[P]) -> Batch[Q]:
        """Send the batch to the replica with the fewest calls under way; if that dies, once more to another.

        Raises:
            NoReplica: nothing is running that could take the batch, and none of its images waits until something is.
            EnsembleError: the node failed.
        """
        sent = batch.without_steps()
        gone = set()
        for _ in range(TRIES):
            name, replica = self._choose()
            if replica is None:
                break
            try:
                answer = await replica.call(sent)
            except GoneError:
                gone.add(name)
                if self._nearby.replicas.get(name) is replica:
                    self._nearby.forget(name)
                continue
            except EnsembleError:
                self._count("direct")
                raise
            self._count("direct")
            return answer.after(batch)
        # A process that is being killed may still accept a connection after it has closed others.
        is_none = self._nearby.look().keys() <= gone
        if is_none and self._is_alone() and not any(item.waits for item in batch.items):
            raise NoReplica("no replica of it is running; Serve starts another")
        self._count("handle")
        return await self._handle(batch)

    def _choose(self) -> tuple[str, Replica | None]:
        is_alone = self._is_alone()
        replicas = self._nearby.look()
        name = min(replicas, key=lambda name: replicas[name].under_way, default="")
        replica = replicas.pop(name, None)
        if replica is not None:
            # To the end: of those with as few calls, the one that has waited longest is next.
            replicas[name] = replica
        if replica is not None and replica.under_way >= FULL and is_alone is False:
            replica = None
        return name, replica

    def _is_alone(self) -> bool | None:
        """Whether this machine was all there is when last counted; a full replica's next batch then waits for it."""
        now = time.monotonic()
        if now >= self._counted + COUNT_NODES_EVERY_S:
            self._counted = now
            self._counting = asyncio.ensure_future(self._count_nodes())
        return self._alone

    async def _count_nodes(self) -> None:
        try:
            # It asks another process, and waits for the answer.
            nodes = await asyncio.to_thread(ray.nodes)
        except Exception:
            logger.exception("the nodes of the cluster can't be counted")
            return
        self._alone = sum(node["Alive"] for node in nodes) <= 1

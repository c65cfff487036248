"""The replicas of a node on this machine: the connections to them, the calls in flight, and which are frozen."""

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from deployments.contract.batch import Batch
from deployments.contract.errors import error_by_code
from deployments.cpus import cpu_ns
from deployments.rpc.wire import ANSWER, CALL, CLOSING, PING, VERSION, Frames, decode, encode

logger = logging.getLogger("ray.serve")

Reply = tuple[int, memoryview]

# A replica that has answered nothing for this time is asked whether it is alive.
SILENT_S = 0.1
# It is frozen if it neither answers nor uses any CPU time for so many looks. They are counted, and not timed, because a
# machine that was suspended gives its processes no time to answer.
LOOKS, LOOK_EVERY_S = 4, 0.05
FAILED = "a node failed; its log has the cause"
# How often the folder of the sockets is read.
READ_EVERY_S = 0.2


class ReplicaGone(ConnectionError):
    """The replica closed the connection: it has died, or is about to stop."""


class Connection(Frames):
    """A connection to a replica, with one call at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = True
        self._reply: asyncio.Future[Reply] | None = None

    async def call(self, kind: int, content: bytes = b"") -> Reply:
        """Send a frame and wait for the reply; raises ReplicaGone if the connection ends."""
        if not self.alive:
            raise ReplicaGone
        self._reply = asyncio.get_running_loop().create_future()
        try:
            self.send(kind, content)
            return await self._reply
        except BaseException:
            # The node would go on working for nobody while the next batch waits.
            self.abort()
            raise
        finally:
            self._reply = None

    def received(self, kind: int, content: memoryview) -> None:
        """Take the reply."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((kind, content))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call."""
        self.alive = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ReplicaGone())


class Replica:
    """A replica on this machine.

    Attributes:
        name: the name of its socket.
        in_flight: the number of calls in flight.
        is_frozen: whether its process stands still. Its calls have ended by ReplicaGone.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.in_flight = path.name, 0
        self.is_frozen = False
        self._path = path
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        self._heard = 0.0
        self._watch: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._idle) + self.in_flight

    async def call(self, batch: Batch[Any]) -> Batch[Any]:
        """Send a batch and return the node's answer.

        Raises:
            ReplicaGone: the replica has died, is stopping, or is frozen; another one may take the batch.
            EnsembleError: the node failed.
        """
        content = encode(batch)
        self.in_flight += 1
        try:
            connection = await self._connect()
            if self._watch is None:
                self._heard = time.monotonic()
                self._watch = asyncio.get_running_loop().create_task(self._keep_watch())
            self._busy.add(connection)
            try:
                kind, reply = await connection.call(CALL, content)
            finally:
                self._busy.discard(connection)
        finally:
            self.in_flight -= 1
        self._heard = time.monotonic()
        if self._closed:
            connection.abort()
        else:
            self._idle.append(connection)
        if kind == CLOSING:
            self.close()
            raise ReplicaGone
        if kind == ANSWER:
            return decode(reply)
        raise error_by_code(**msgspec.json.decode(reply)) if reply else RuntimeError(FAILED)

    async def _connect(self) -> Connection:
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

    async def _keep_watch(self) -> None:
        """Watch for a frozen replica, while calls to it are in flight."""
        try:
            while self.in_flight:
                await asyncio.sleep(SILENT_S)
                if self.in_flight and time.monotonic() > self._heard + SILENT_S:
                    await self._ping()
        except ReplicaGone:
            pass
        finally:
            self.is_frozen, self._watch = False, None

    async def _ping(self) -> None:
        """Wait until the replica answers; meanwhile its calls end if it is frozen.

        Raises:
            ReplicaGone: it has died.
        """
        connection = await self._connect()
        pong = asyncio.ensure_future(connection.call(PING))
        before, still = 0, 0
        # A process that has ended has no clock, and no connection either.
        with suppress(OSError):
            while not pong.done():
                used = cpu_ns(connection.pid)
                still, before = (still + 1 if used == before else 0), used
                if still == LOOKS:
                    self._freeze(connection.pid)
                await asyncio.wait([pong], timeout=LOOK_EVERY_S)
        await pong
        self.is_frozen, self._heard = False, time.monotonic()
        connection.abort()

    def _freeze(self, pid: int) -> None:
        logger.warning("the process of a replica (%d) stands still; its batches are sent elsewhere", pid)
        self.is_frozen = True
        for each in self._busy:
            each.abort()

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
        """Find the replicas; reads the folder in each call while there are none, otherwise every `READ_EVERY_S`."""
        now = time.monotonic()
        if self._found and now < self._looked + READ_EVERY_S:
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

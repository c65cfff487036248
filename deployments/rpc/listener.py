"""The replica's end of the direct edges: takes batches on a socket of its own, and sends back what the node answers."""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import msgspec
import ray

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError
from deployments.folder_permissions import is_private, make_private
from deployments.rpc.wire import ANSWER, CALL, CLOSING, FAILURE, PING, VERSION, Frames, decode, encode

logger = logging.getLogger("ray.serve")

# Seconds that callers have to read the last answers.
FLUSH_S = 5.0
# Bytes of a Unix socket's path on Linux, without the zero at its end; and of a socket's name in its folder.
MAX_PATH, MAX_NAME = 107, 24
Work = Callable[[Batch[Any]], Awaitable[Batch[Any]]]


def place(application: str, name: str) -> Path:
    """Return the folder in which an application's replicas on this Ray node share files; it may not exist yet.

    It is in the folder of `ensemble serve`. A Ray that something else has started has none: everybody may write there.
    """
    context = ray.get_runtime_context()
    own = Path(context.get_temp_dir()).parent
    key = "\n".join((context.get_node_id(), application, name))
    folder = own if is_private(own) else Path(f"/tmp/ensemble-{os.getuid()}")  # noqa: S108
    return folder / hashlib.sha256(key.encode()).hexdigest()[:10]


def sockets(application: str, deployment: str) -> Path | None:
    """Return the folder of a deployment's sockets; None if the paths of sockets in it would be too long.

    Two Ray nodes have different folders, even on one machine: calls between them go by Serve's handle.
    """
    folder = place(application, deployment)
    return folder if len(os.fsencode(folder)) + MAX_NAME < MAX_PATH else None


class Listener:
    """Listens for callers on this machine, until it is closing and takes no more batches."""

    def __init__(self, work: Work, folder: Path, replica: str) -> None:
        """Set the function that answers a batch, the folder of the deployment's sockets, and the replica's name."""
        self.work, self.closing = work, False
        self.callers: set[Caller] = set()
        self._path = folder / f"{replica}.{VERSION}"
        self._server: asyncio.Server | None = None

    async def keep_open(self) -> None:
        """Listen, unless this does already or is closing; raises OSError if it can't.

        The socket gets the name by which callers find it when it is ready. A program that removes old files may remove
        the name; then it gets the name again.
        """
        if self.closing or (self._server is not None and self._path.exists()):
            return
        before = self._server
        try:
            await self._listen()
        except FileNotFoundError:
            # The last other replica has ended meanwhile, and has removed the folder.
            await self._listen()
        if before is not None:
            before.close()

    async def _listen(self) -> None:
        make_private(self._path.parent)
        unready = self._path.with_suffix(".new")
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Caller(self), unready)
        unready.rename(self._path)

    async def close(self) -> None:
        """Refuse new batches, and finish the batches that have arrived."""
        self.closing = True
        self._path.unlink(missing_ok=True)
        if tasks := [caller.task for caller in self.callers if caller.task is not None]:
            await asyncio.wait(tasks)
        if self._server is not None:
            self._server.close()
        for caller in list(self.callers):
            caller.close()
        # The process ends after this, and what has not been sent is lost with it.
        give_up = time.monotonic() + FLUSH_S
        while self.callers and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        # They are removed with the last socket.
        with suppress(OSError):
            self._path.parent.rmdir()
            self._path.parent.parent.rmdir()


class Caller(Frames):
    """A caller's connection, with one batch at a time. When it ends, the work on the batch is cancelled."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.task: asyncio.Task[None] | None = None
        self._listener = listener
        listener.callers.add(self)

    def received(self, kind: int, content: memoryview) -> None:
        """Begin to work on a batch, or answer a ping."""
        if kind == PING:
            self.send(PING)
        elif kind != CALL or self.task is not None:
            self.abort()
        elif self._listener.closing:
            self.send(CLOSING)
        else:
            # In a context of its own, which the batch has in its caller's process, too.
            self.task = asyncio.get_running_loop().create_task(self._answer(content), context=Context())

    async def _answer(self, content: memoryview) -> None:
        try:
            kind, reply = ANSWER, encode(await self._listener.work(decode(content)))
        except EnsembleError as err:
            kind, reply = FAILURE, msgspec.json.encode(err.to_dict())
        except Exception:
            logger.exception("a node failed on a batch")
            kind, reply = FAILURE, b""
        except BaseException:
            # Without an answer the caller gets the end of the connection, which it notices at once.
            self.abort()
            raise
        self.task = None
        self.send(kind, reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work for a caller that has disconnected."""
        self._listener.callers.discard(self)
        if self.task is not None:
            self.task.cancel()

"""A replica's end of the direct edges: takes batches on its own socket, and sends them back worked on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import msgspec

from deployments.contract.batch import Batch
from deployments.contract.errors import EnsembleError
from graph.edges.folder import private
from graph.edges.frames import Frames
from graph.edges.wire import ANSWER, CALL, CLOSING, FAILURE, VERSION, Body, Buffer, decode, encode

logger = logging.getLogger("ray.serve")

# How long the last answers may take to be read by who waits for them.
FLUSH_S = 5.0
Work = Callable[[Batch[Any]], Awaitable[Batch[Any]]]


class Listener:
    """Listens for callers on this machine."""

    def __init__(self, work: Work, folder: Path, replica: str) -> None:
        """Set who works on a batch, and the socket: the replica's name in the folder of its deployment."""
        self._work = work
        self._path = folder / f"{replica}.{VERSION}"
        self._server: asyncio.Server | None = None
        self.closing = False
        self._callers: set[Caller] = set()

    async def open(self) -> None:
        """Listen; callers find the socket by its name, which it gets when it is ready."""
        private(self._path.parent)
        unready = self._path.with_suffix(".new")
        before = self._server
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Caller(self).frames, unready)
        unready.rename(self._path)
        if before is not None:
            before.close()

    @property
    def is_open(self) -> bool:
        """Whether callers find it; what cleans old files up may have removed its name."""
        return self._server is not None and self._path.exists()

    async def keep_open(self) -> None:
        """Listen, if it does not and is not about to end; raises OSError if it can't."""
        if not self.closing and not self.is_open:
            await self.open()

    def admit(self, caller: Caller) -> None:
        """Know a caller."""
        self._callers.add(caller)

    def forget(self, caller: Caller) -> None:
        """Know it no more."""
        self._callers.discard(caller)

    async def work(self, batch: Batch[Any]) -> Batch[Any]:
        """What the node makes of a batch."""
        return await self._work(batch)

    async def close(self) -> None:
        """Take no more batches, and finish those that are here."""
        self.closing = True
        with suppress(FileNotFoundError):
            self._path.unlink()
        tasks = [caller.task for caller in self._callers if caller.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        if self._server is not None:
            self._server.close()
        for caller in list(self._callers):
            caller.frames.close()
        # The process ends after this, and with it what has not been sent.
        give_up = time.monotonic() + FLUSH_S
        while self._callers and time.monotonic() < give_up:
            await asyncio.sleep(0.01)


class Caller:
    """One connection: a batch at a time. When it ends, nobody waits for the work any more."""

    def __init__(self, listener: Listener) -> None:
        """Set the listener."""
        self.frames = Frames(self)
        self.task: asyncio.Task[None] | None = None
        self._listener = listener
        listener.admit(self)

    def received(self, kind: int, header: bytes, body: Body) -> None:
        """Begin to work."""
        if kind != CALL or self.task is not None:
            self.frames.abort()
        elif self._listener.closing:
            self.frames.send(CLOSING)
        else:
            # In a context of its own, as the batch has one where it comes from.
            self.task = asyncio.get_running_loop().create_task(self._answer(header, body), context=Context())

    async def _answer(self, header: bytes, body: Body) -> None:
        try:
            reply = await self._reply(header, body)
            self.task = None
            self.frames.send(*reply)
        except BaseException:
            # Without an answer the caller had better know at once.
            self.frames.abort()
            raise

    async def _reply(self, header: bytes, body: Body) -> tuple[int, bytes, list[Buffer]]:
        try:
            return ANSWER, *encode(await self._listener.work(decode(header, body)))
        except EnsembleError as err:
            return FAILURE, msgspec.json.encode(err.to_dict()), []
        except Exception:
            logger.exception("a node failed on a batch")
            return FAILURE, b"", []

    def lost(self) -> None:
        """Stop working for a caller that left."""
        self._listener.forget(self)
        if self.task is not None:
            self.task.cancel()

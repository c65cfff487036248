"""The replicas of the ingress on this machine: the true label of an image finds the one that answered it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded, UnknownRequest
from deployments.contract.item import Item
from graph.capabilities.feedback.store import FeedbackStore
from graph.edges.direct import GoneError, Nearby
from graph.edges.listener import Listener
from graph.edges.wire import VERSION

logger = logging.getLogger("ray.serve")

# How long another replica may take, which has nothing to compute, and for how long one that was silent is left alone.
PATIENCE_S, LEFT_ALONE_S = 1.0, 5.0
SILENT = "a replica of the ingress, which may have given the answer, is silent; try again"
# The request, the label, the image's position, the name of the key, and until when it may be taken, seconds since the
# epoch.
DECODER = msgspec.msgpack.Decoder(tuple[str, str | int, int, str, float])


class Peers:
    """Takes labels, and those of answers that another replica has given to that one.

    Each of them listens on a socket of its own in a folder that all share.
    """

    def __init__(self, store: FeedbackStore, folder: Path | None, name: str) -> None:
        """Set what remembers answers here, the folder (None if there can't be one), and this replica's name in it."""
        self._store = store
        self._others = None if folder is None else Nearby(folder, f"{name}.{VERSION}")
        self._listener = None if folder is None else Listener(self._told, folder, name)
        self._silent_until: dict[str, float] = {}

    async def listen(self) -> None:
        """Let the others find this replica, if they do not."""
        if self._listener is not None:
            try:
                await self._listener.keep_open()
            except OSError:
                logger.exception("no other replica can hand on labels to this one")
                self._listener = None

    async def __call__(self, request: str, label: str | int, place: int, key: str) -> None:
        """Take an image's true label; see `FeedbackStore.take`, which says what it raises.

        Raises:
            DeadlineExceeded: the answer is not remembered here, and a replica that may remember it was silent.
        """
        is_ours = self._store.remembers(request, place, key) or not self._store.is_class(label)
        if is_ours or not await self._others_take(request, label, place, key):
            self._store.take(request, label, place, key)

    async def _others_take(self, request: str, label: str | int, place: int, key: str) -> bool:
        if self._others is None:
            return False
        silent, others = False, dict(self._others.look())
        self._silent_until = {name: until for name, until in self._silent_until.items() if name in others}
        for name, other in others.items():
            if time.monotonic() < self._silent_until.get(name, 0):
                silent = True
                continue
            named = label if isinstance(label, str) else int(label)
            told = request, named, place, key, time.time() + PATIENCE_S
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await other.call(Batch([msgspec.msgpack.encode(told)], (Item(),)))
                return True
            except UnknownRequest:
                continue
            except (TimeoutError, GoneError) as err:
                # One that is not there remembers nothing; one that did not answer may.
                if isinstance(err.__cause__, FileNotFoundError | ConnectionRefusedError):
                    self._others.forget(name)
                else:
                    silent = True
                    self._silent_until[name] = time.monotonic() + LEFT_ALONE_S
        if silent:
            raise DeadlineExceeded(SILENT)
        return False

    async def _told(self, batch: Batch[list[bytes]]) -> Batch[list[bytes]]:
        """What another replica was told; raises as `FeedbackStore.take`, and counts only what is remembered here."""
        request, label, place, key, until = DECODER.decode(batch.payload[0])
        if time.time() > until:
            raise DeadlineExceeded(SILENT)
        if not self._store.remembers(request, place, key):
            raise UnknownRequest("it is not remembered here")
        self._store.take(request, label, place, key)
        return batch

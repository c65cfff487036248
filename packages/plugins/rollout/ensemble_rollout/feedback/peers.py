"""Hands a true label to the replica of the ingress on this machine that gave the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded, UnknownRequest
from deployments.contract.item import Item
from deployments.rpc.direct import LocalReplicas
from deployments.rpc.listener import Listener
from deployments.rpc.replica import ReplicaGone
from deployments.rpc.wire import VERSION
from ensemble_rollout.feedback.store import FeedbackStore

logger = logging.getLogger("ray.serve")

# Seconds that another replica may take, which has nothing to compute, and for which one that did not answer is skipped.
PATIENCE_S, SKIPPED_S = 1.0, 5.0
SILENT = "a replica of the ingress, which may have given the answer, does not respond; try again"
# The request, the label, the image's position, the key's name, and until when to take it, seconds since the epoch.
DECODER = msgspec.msgpack.Decoder(tuple[str, str | int, int, str, float])


class Peers:
    """Takes labels here, or has another replica take them; each listens on a socket in a folder that all share."""

    def __init__(self, store: FeedbackStore, folder: Path | None, name: str) -> None:
        """Set what remembers answers here, the folder (None if there can't be one), and this replica's name in it."""
        self._store = store
        self._others = None if folder is None else LocalReplicas(folder, f"{name}.{VERSION}")
        self._listener = None if folder is None else Listener(self._handed, folder, name)
        self._skipped_until: dict[str, float] = {}

    async def listen(self) -> None:
        """Let the other replicas find this one, unless they do already."""
        if self._listener is not None:
            try:
                await self._listener.keep_open()
            except OSError:
                logger.exception("no other replica can hand on labels to this one")
                self._listener = None

    async def __call__(self, request: str, label: str | int, place: int, key: str) -> None:
        """Take an image's true label; raises what `FeedbackStore.take` raises.

        Raises:
            DeadlineExceeded: the answer is not remembered here, and a replica that may remember it did not respond.
        """
        is_ours = self._store.remembers(request, place, key) or not self._store.is_class(label)
        if is_ours or not await self._others_take(request, label, place, key):
            self._store.take(request, label, place, key)

    async def _others_take(self, request: str, label: str | int, place: int, key: str) -> bool:
        """Offer the label to other replicas; tell whether one took it."""
        if self._others is None:
            return False
        silent, others = False, dict(self._others.look())
        self._skipped_until = {name: until for name, until in self._skipped_until.items() if name in others}
        for name, other in others.items():
            if time.monotonic() < self._skipped_until.get(name, 0):
                silent = True
                continue
            # A label may be an integer of numpy's.
            sent = request, label if isinstance(label, str) else int(label), place, key, time.time() + PATIENCE_S
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await other.call(Batch([msgspec.msgpack.encode(sent)], (Item(),)))
                return True
            except UnknownRequest:
                continue
            except (TimeoutError, ReplicaGone) as err:
                # A replica that does not exist remembers nothing; one that did not respond may remember the answer.
                if isinstance(err.__cause__, FileNotFoundError | ConnectionRefusedError):
                    self._others.forget(name)
                else:
                    silent = True
                    self._skipped_until[name] = time.monotonic() + SKIPPED_S
        if silent:
            raise DeadlineExceeded(SILENT)
        return False

    async def _handed(self, batch: Batch[list[bytes]]) -> Batch[list[bytes]]:
        """Take a label that another replica hands on; only labels of answers that are remembered here are counted."""
        request, label, place, key, until = DECODER.decode(batch.payload[0])
        if time.time() > until:
            raise DeadlineExceeded(SILENT)
        if not self._store.remembers(request, place, key):
            raise UnknownRequest("it is not remembered here")
        self._store.take(request, label, place, key)
        return batch

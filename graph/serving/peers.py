"""The replicas of the ingress on this machine: the true label of an image finds the one that answered it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded, UnknownRequest
from deployments.contract.item import Item
from graph.edges.direct import GoneError, Replica
from graph.edges.listener import Listener
from graph.edges.wire import VERSION
from graph.flows.rollout import Rollout

logger = logging.getLogger("ray.serve")

# How long another replica may take, which has nothing to compute, and for how long one that was silent is left alone.
PATIENCE_S, LEFT_ALONE_S = 1.0, 5.0
LOOK_EVERY_S = 0.2
SILENT = "a replica of the ingress, which may have given the answer, is silent; try again"
# The request, the label, the image's position, and until when it may be taken, seconds since the epoch.
DECODER = msgspec.msgpack.Decoder(tuple[str, str | int, int, float])


class Peers:
    """Takes labels, and those of answers that another replica has given to that one.

    Each of them listens on a socket of its own in a folder that all share.
    """

    def __init__(self, rollout: Rollout, folder: Path | None, name: str) -> None:
        """Set what remembers answers here, the folder (None if there can't be one), and this replica's name in it."""
        self._rollout, self._folder, self._own = rollout, folder, f"{name}.{VERSION}"
        self._listener = None if folder is None else Listener(self._told, folder, name)
        self._others: dict[str, Replica] = {}
        self._silent_until: dict[str, float] = {}
        self._looked = float("-inf")

    async def listen(self) -> None:
        """Let the others find this replica, if they do not."""
        if self._listener is not None:
            try:
                await self._listener.keep_open()
            except OSError:
                logger.exception("no other replica can hand on labels to this one")
                self._listener = None

    async def __call__(self, request: str, label: str | int, place: int) -> None:
        """Take an image's true label; see `Rollout.label`, which says what it raises.

        Raises:
            DeadlineExceeded: the answer is not remembered here, and a replica that may remember it was silent.
        """
        is_ours = self._rollout.remembers(request, place) or not self._rollout.is_class(label)
        if is_ours or not await self._others_take(request, label, place):
            self._rollout.label(request, label, place)

    async def _others_take(self, request: str, label: str | int, place: int) -> bool:
        silent = False
        for name, other in list(self._look().items()):
            if time.monotonic() < self._silent_until.get(name, 0):
                silent = True
                continue
            told = request, label if isinstance(label, str) else int(label), place, time.time() + PATIENCE_S
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await other.call(Batch([msgspec.msgpack.encode(told)], (Item(),)))
                return True
            except UnknownRequest:
                continue
            except (TimeoutError, GoneError) as err:
                # One that is not there remembers nothing; one that did not answer may.
                if isinstance(err.__cause__, FileNotFoundError | ConnectionRefusedError):
                    self._forget(name)
                else:
                    silent = True
                    self._silent_until[name] = time.monotonic() + LEFT_ALONE_S
        if silent:
            raise DeadlineExceeded(SILENT)
        return False

    def _look(self) -> Mapping[str, Replica]:
        """The other replicas, by their sockets, which are looked for every so often."""
        now = time.monotonic()
        if self._folder is None or now < self._looked + LOOK_EVERY_S:
            return self._others
        self._looked = now
        paths = {path.name: path for path in self._folder.glob(f"*.{VERSION}") if path.name != self._own}
        for name in self._others.keys() - paths:
            self._forget(name)
        self._silent_until = {name: until for name, until in self._silent_until.items() if name in paths}
        for name in sorted(paths.keys() - self._others):
            self._others[name] = Replica(paths[name])
        return self._others

    def _forget(self, name: str) -> None:
        if (other := self._others.pop(name, None)) is not None:
            other.close()

    async def _told(self, batch: Batch[list[bytes]]) -> Batch[list[bytes]]:
        """What another replica was told; raises as `Rollout.label`, and counts nothing that is not remembered here."""
        request, label, place, until = DECODER.decode(batch.payload[0])
        if time.time() > until:
            raise DeadlineExceeded(SILENT)
        if not self._rollout.remembers(request, place):
            raise UnknownRequest("it is not remembered here")
        self._rollout.label(request, label, place)
        return batch

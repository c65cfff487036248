"""The replicas of the ingress on this machine: the true label of an image finds the one that answered it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
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

# How long another replica may take; it has nothing to compute.
PATIENCE_S = 1.0
DECODER = msgspec.msgpack.Decoder(tuple[str, str | int, int])


class Peers:
    """Takes labels, and those of answers that another replica has given to that one.

    Each of them listens on a socket of its own in a folder that all share.
    """

    def __init__(self, rollout: Rollout, folder: Path | None, name: str) -> None:
        """Set what remembers answers here, the folder (None if there can't be one), and this replica's name in it."""
        self._rollout, self._folder, self._own = rollout, folder, f"{name}.{VERSION}"
        self._listener = None if folder is None else Listener(self._told, folder, name)

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
        if self._rollout.remembers(request, place) or not await self._others_take(request, label, place):
            self._rollout.label(request, label, place)

    async def _others_take(self, request: str, label: str | int, place: int) -> bool:
        told = Batch([msgspec.msgpack.encode((request, label, place))], (Item(),))
        silent = False
        for other in self._others():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await other.call(told)
                return True
            except TimeoutError:
                silent = True
            except (UnknownRequest, GoneError):
                continue
            finally:
                other.close()
        if silent:
            raise DeadlineExceeded("a replica of the ingress, which may have given the answer, is silent; try again")
        return False

    def _others(self) -> Iterator[Replica]:
        if self._folder is not None and self._folder.is_dir():
            for path in sorted(self._folder.glob(f"*.{VERSION}")):
                if path.name != self._own:
                    yield Replica(path)

    async def _told(self, batch: Batch[list[bytes]]) -> Batch[list[bytes]]:
        """What another replica was told; raises as `Rollout.label`, and counts nothing that is not remembered here."""
        request, label, place = DECODER.decode(batch.payload[0])
        if not self._rollout.remembers(request, place):
            raise UnknownRequest("it is not remembered here")
        self._rollout.label(request, label, place)
        return batch

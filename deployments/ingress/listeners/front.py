"""The servers of a replica of the ingress, behind HAProxy."""

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor

from deployments.ingress import protocol
from deployments.ingress.listeners.grpc import GrpcListener
from deployments.ingress.listeners.http import HttpListener
from deployments.ingress.listeners.reflection import ReflectionListener
from deployments.ingress.listeners.slot import APPLICATION, FOLDER, FUNCTIONS, NOTICE_S, Slot, take

logger = logging.getLogger("ray.serve")

# The requests that HAProxy sent just before it was told to send no more have arrived after this time.
ON_THE_WAY_S = 0.1
LOOK_EVERY_S = 0.01
# A client of gRPC that calls at least so often takes no notice that the last replica leaves.
DISMISS_S = 1.0


class Front:
    """Answers HTTP and gRPC behind HAProxy, from `keep_open` until `close`."""

    def __init__(self, folder: Path, http: HttpListener, grpc: GrpcListener) -> None:
        self._folder = folder
        # HTTP last: by its socket whoever starts HAProxy sees that the slot is open.
        self._listeners: dict[str, HttpListener | GrpcListener | ReflectionListener] = {
            "grpc": grpc,
            "reflection": ReflectionListener(grpc.services),
            "http": http,
        }
        self._slot: Slot | None = None
        self._closing = False

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered yet."""
        return sum(listener.in_flight for listener in self._listeners.values())

    async def keep_open(self) -> None:
        """Listen and announce it to HAProxy, unless that was done before or the replica is about to end.

        Raises:
            ConfigurationError: HAProxy has no slot left.
            OSError: the sockets can't be opened.
        """
        if self._slot is not None or self._closing:
            return
        self._slot = slot = take(self._folder)
        try:
            for name, listener in self._listeners.items():
                # A replica that was killed has left it.
                slot.path(name).unlink(missing_ok=True)
                await listener.open(slot.path(name))
        except BaseException:
            # Serve asks again, and may find what was missing.
            await asyncio.gather(*(each.close() for each in self._listeners.values()), return_exceptions=True)
            slot.release()
            self._slot = None
            raise
        try:
            await asyncio.to_thread(slot.open)
        except OSError as err:
            # Whoever starts it again looks which slots are open.
            logger.warning("HAProxy is not there (%s); requests come when it is", err)

    async def close(self) -> None:
        """Answer the requests that have arrived, while HAProxy sends new ones to others, and stop listening."""
        self._closing = True
        if (slot := self._slot) is None:
            return
        with suppress(OSError):
            if await asyncio.to_thread(slot.announce):
                await asyncio.sleep(NOTICE_S)
                await asyncio.to_thread(slot.dismiss)
                await asyncio.sleep(DISMISS_S)
            await asyncio.to_thread(slot.drain)
        for name in self._listeners:
            slot.path(name).unlink(missing_ok=True)
        await asyncio.sleep(ON_THE_WAY_S)
        while self.in_flight:
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.gather(*(listener.close() for listener in self._listeners.values()))
        with suppress(OSError):
            await asyncio.to_thread(slot.renew)
        slot.release()


def folder(application: str) -> Path | None:
    """Return the folder of an application's sockets; None where no HAProxy of ours is in front of it."""
    found = os.environ.get(FOLDER)
    if found is None:
        return None
    if (known := os.environ.get(APPLICATION)) != application:
        logger.warning("no client reaches application %r: HAProxy is in front of %r", application, known)
        return None
    return Path(found)


def services(named: Sequence[str]) -> tuple[ServiceDescriptor, ...]:
    """List the gRPC services that clients reach, of protocols that are installed or that the configuration names."""
    if FOLDER in os.environ:
        return protocol.services(json.loads(os.environ.get(FUNCTIONS, "null")), named)
    return tuple(service for each in protocol.resolve(named) if each.behind_serve for service in each.services)

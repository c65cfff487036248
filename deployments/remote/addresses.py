"""The addresses of a model server: those that its name resolves to, which of them are well, and which is asked next."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
import time
from collections.abc import Callable

from deployments.remote.failures import CallError, Late, Unreachable
from deployments.remote.server import Server
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import Fit, fit

logger = logging.getLogger("ray.serve")

RESOLVE_EVERY_S = 5.0
# How long a call waits for an address that has not been asked yet; asking goes on without it.
FIRST_CONTACT_S = 1.0
PROBE_TIMEOUT_S = 5.0
PROBE_FIRST_S, PROBE_MOST_S = 0.2, 3.0


class Address:
    """One address, and how well it is.

    It is asked what its model takes until it says so, and from then on it is well. When several calls in a row have
    failed it is left alone, and asked that again and again, ever more rarely, so that no call has to find out.

    Attributes:
        server: asks it.
        fit: how its model is asked; None as long as it is not well.
        under_way: calls that it has not answered.
        why: what was last wrong with it.
        tried: done once it has been asked for the first time, whatever came of it.
    """

    def __init__(self, where: str, server: Server, config: RemoteConfig, check: Callable[[Fit], None]) -> None:
        """Set its name for the log, what asks it, and what raises Misfit for a model that does not fit the others."""
        self.server = server
        self.fit: Fit | None = None
        self.under_way = 0
        self.why: CallError = Unreachable("it has not been asked yet")
        self.tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._where, self._config, self._check = where, config, check
        self._failures = 0
        self._probing: asyncio.Task[None] | None = None

    def probe(self) -> None:
        """Ask it what its model takes until it says so."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        delay_s = PROBE_FIRST_S
        told = ""
        while True:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    how = fit(await self.server.describe(PROBE_TIMEOUT_S), self._config)
                self._check(how)
                break
            except (CallError, TimeoutError) as err:
                self.why = err if isinstance(err, CallError) else Late(f"no answer in {PROBE_TIMEOUT_S:.0f} s")
                if self.under_way == 0:
                    # A connection that hangs would hang again.
                    await self.server.close()
                if told != (told := str(self.why)):
                    logger.warning("member %r: %s: %s", self._config.name, self._where, told)
                self._was_tried()
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))
            delay_s = min(PROBE_MOST_S, 2 * delay_s)
        logger.info("member %r: %s answers, version %s", self._config.name, self._where, how.version or "unknown")
        self.fit, self._failures = how, 0
        self._was_tried()

    def _was_tried(self) -> None:
        if not self.tried.done():
            self.tried.set_result(None)

    def succeeded(self) -> None:
        """A call was answered."""
        self._failures = 0

    def failed(self, error: CallError) -> None:
        """A call failed; after several in a row it is left alone until it says again what its model takes."""
        self.why = error
        if not error.counts:
            return
        self._failures += 1
        if self._failures >= self._config.break_after and self.fit is not None:
            logger.warning("member %r: %s is left alone until it is well: %s", self._config.name, self._where, error)
            self.fit = None
            self.probe()

    async def close(self) -> None:
        """Ask it no more; what is under way may end."""
        if self._probing is not None:
            self._probing.cancel()
        if self.under_way:
            await asyncio.sleep(self._config.timeout_ms / 1000)
        await self.server.close()


class Addresses:
    """Every address that the server's name resolves to."""

    def __init__(self, config: RemoteConfig, connect: Callable[[str], Server], check: Callable[[Fit], None]) -> None:
        """Set the configuration, what makes a client of an IP address, and what raises Misfit for another model."""
        self._config, self._connect, self._check = config, connect, check
        self._known: dict[str, Address] = {}
        self._resolved = float("-inf")
        self._resolving: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def well(self, patience_s: float) -> list[Address]:
        """Those that can be asked, the one with the fewest calls under way first, of equal ones who waited longest.

        Raises:
            Unreachable: there is none, whatever the reason.
        """
        if time.monotonic() >= self._resolved + RESOLVE_EVERY_S and not self._is_resolving:
            self._resolving = asyncio.get_running_loop().create_task(self._resolve())
        if not self._known and self._resolving is not None:
            await asyncio.wait([self._resolving], timeout=min(patience_s, FIRST_CONTACT_S))
        give_up = time.monotonic() + min(patience_s, FIRST_CONTACT_S)
        while not (found := self._found()):
            untried = [address.tried for address in self._known.values() if not address.tried.done()]
            left_s = give_up - time.monotonic()
            if not untried or left_s <= 0:
                break
            await asyncio.wait(untried, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not found:
            why = next((address.why for address in self._known.values()), None)
            raise Unreachable("its name does not resolve" if why is None else f"{type(why).__name__}: {why}")
        return found

    def count(self) -> tuple[int, int]:
        """How many are well, and how many are not; from any thread."""
        known = list(self._known.values())
        well = sum(each.fit is not None for each in known)
        return well, len(known) - well

    def _found(self) -> list[Address]:
        return sorted((each for each in self._known.values() if each.fit is not None), key=lambda each: each.under_way)

    def took(self, address: Address) -> None:
        """An address is asked: among equals it is the last now."""
        where = next((where for where, each in self._known.items() if each is address), None)
        if where is not None:
            self._known[where] = self._known.pop(where)

    @property
    def _is_resolving(self) -> bool:
        return self._resolving is not None and not self._resolving.done()

    async def _resolve(self) -> None:
        self._resolved = time.monotonic()
        try:
            found = await resolve(self._config.host, self._config.port)
        except OSError as err:
            # Those that are known may be well still.
            logger.warning("member %r: %s does not resolve: %s", self._config.name, self._config.host, err)
            return
        for where in self._known.keys() - found:
            closing = asyncio.get_running_loop().create_task(self._known.pop(where).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for where in found:
            if where not in self._known:
                told = f"{self._config.url} ({where})"
                self._known[where] = Address(told, self._connect(where), self._config, self._check)
                self._known[where].probe()


async def resolve(host: str, port: int) -> list[str]:
    """The IP addresses of a host; raises OSError if it has none."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    told = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in told))

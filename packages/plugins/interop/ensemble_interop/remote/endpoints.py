"""The endpoints of a model server: the addresses that its name resolves to, and their health."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable

from ensemble_interop.remote.calls import Connection, connect_to
from ensemble_interop.remote.client import CallError, InvalidResponse, RequestRejected, TimedOut, Unavailable
from ensemble_interop.remote.config import RemoteConfig
from ensemble_interop.remote.tensors import Binding, IncompatibleModel, ModelMetadata, bind

logger = logging.getLogger("ray.serve")

RESOLVE_EVERY_S = 5.0
# How long a call waits for an endpoint that has never been probed to the end, and how often it looks.
FIRST_PROBE_WAIT_S, LOOK_EVERY_S = 1.0, 0.005
PROBE_TIMEOUT_S = 5.0
MIN_PROBE_DELAY_S, MAX_PROBE_DELAY_S = 0.2, 3.0

Check = Callable[[Binding], None]


class Endpoint:
    """One address of a server, and its health.

    An endpoint is healthy once it has described its model. After several failures in a row it is ejected: it gets no
    calls, and is probed again, at growing intervals, until it describes its model.

    Attributes:
        client: calls it.
        binding: the tensors of its model; None while it is not healthy.
        in_flight: how many calls it has not answered.
        called: when it was called last, seconds of a monotonic clock.
        last_error: what went wrong last.
        is_probed: whether a probe has ended, whatever its outcome.
    """

    def __init__(self, address: str, client: Connection, config: RemoteConfig, check: Check) -> None:
        """Set the address for the log, the client, and the check that raises IncompatibleModel for a model."""
        self.client = client
        self.binding: Binding | None = None
        self.in_flight, self.called = 0, 0.0
        self.last_error: Exception = Unavailable("it was not probed yet")
        self.is_probed = False
        self._address, self._config, self._check = address, config, check
        self._failures, self._is_closed = 0, False
        self._probing: asyncio.Task[None] | None = None

    def probe(self) -> None:
        """Ask the endpoint to describe its model, until it does."""
        if not self._is_closed and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        delay_s, logged = MIN_PROBE_DELAY_S, ""
        while True:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    binding = bind(await self.client.describe(PROBE_TIMEOUT_S), self._config)
                self._check(binding)
                break
            except TimeoutError:
                self.last_error = TimedOut(f"no response in {PROBE_TIMEOUT_S:.0f} s")
            except Exception as err:
                # Whatever the server has sent, it is asked again.
                self.last_error = err
                if isinstance(err, IncompatibleModel):
                    self.binding = None
            if self.in_flight == 0:
                # The next probe needs another connection if this one hangs.
                await self.client.close()
            if logged != (logged := str(self.last_error)):
                logger.warning("member %r: %s: %s", self._config.name, self._address, logged)
            self.is_probed = True
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))
            delay_s = min(MAX_PROBE_DELAY_S, 2 * delay_s)
        if binding != self.binding:
            version = binding.version or "unknown"
            logger.info("member %r: %s is healthy, version %s", self._config.name, self._address, version)
        self.binding, self._failures, self.is_probed = binding, 0, True

    def succeeded(self) -> None:
        """Count a call that was answered."""
        self._failures = 0

    def failed(self, error: CallError) -> None:
        """Count a call that failed; after several in a row that say so the endpoint is ejected."""
        self.last_error = error
        self._failures += error.counts
        if isinstance(error, RequestRejected | InvalidResponse):
            # Its model may have been replaced by one with other tensors.
            self.probe()
        if error.counts and self._failures >= self._config.break_after and self.binding is not None:
            logger.warning("member %r: %s is ejected until it is healthy: %s", self._config.name, self._address, error)
            self.binding = None
            self.probe()

    async def close(self) -> None:
        """Stop probing, let the endpoint's calls end, and close the connections."""
        self._is_closed = True
        if self._probing is not None:
            self._probing.cancel()
        if self.in_flight:
            await asyncio.sleep(self._config.timeout_ms / 1000)
        await self.client.close()


class Endpoints:
    """Every address that a server's name resolves to."""

    def __init__(self, config: RemoteConfig, max_scores: int, check: Check) -> None:
        """Set the configuration, the bound of responses, and the check that raises IncompatibleModel for a model."""
        self._config, self._max_scores, self._check = config, max_scores, check
        self._known: dict[str, Endpoint] = {}
        self._resolved = float("-inf")
        self._resolving: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def healthy(self, timeout_s: float) -> list[Endpoint]:
        """List the healthy endpoints.

        Raises:
            Unavailable: there is none.
        """
        if time.monotonic() >= self._resolved + RESOLVE_EVERY_S and (self._resolving is None or self._resolving.done()):
            self._resolving = asyncio.get_running_loop().create_task(self._resolve())
        give_up = time.monotonic() + min(timeout_s, FIRST_PROBE_WAIT_S)
        while not (found := [each for each in self._known.values() if each.binding is not None]):
            unresolved = not self._known and self._resolving is not None and not self._resolving.done()
            unprobed = any(not each.is_probed for each in self._known.values())
            if not (unresolved or unprobed) or time.monotonic() >= give_up:
                error = next((each.last_error for each in self._known.values()), None)
                raise Unavailable("its name does not resolve" if error is None else f"{type(error).__name__}: {error}")
            await asyncio.sleep(LOOK_EVERY_S)
        return found

    def count(self) -> tuple[int, int]:
        """Count the healthy endpoints, and the others; from any thread."""
        known = list(self._known.values())
        healthy = sum(each.binding is not None for each in known)
        return healthy, len(known) - healthy

    async def _resolve(self) -> None:
        self._resolved = time.monotonic()
        try:
            found = await resolve(*self._config.address)
        except OSError as err:
            # The known endpoints may be healthy still.
            logger.warning("member %r: %s does not resolve: %s", self._config.name, self._config.url, err)
            return
        for ip in self._known.keys() - found:
            closing = asyncio.get_running_loop().create_task(self._known.pop(ip).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for ip in found:
            if ip not in self._known:
                client = connect_to(self._config, ip, self._max_scores)
                self._known[ip] = Endpoint(f"{self._config.url} ({ip})", client, self._config, self._check)
                self._known[ip].probe()


async def described(config: RemoteConfig, max_scores: int, timeout_s: float) -> ModelMetadata:
    """Ask a server's addresses for its model's tensors until one answers; raises CallError or OSError if none does."""
    error: CallError = Unavailable("the name does not resolve")
    for ip in await resolve(*config.address):
        client = connect_to(config, ip, max_scores)
        try:
            return await client.describe(timeout_s)
        except CallError as err:
            error = err
        finally:
            await client.close()
    raise error


async def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host; raises OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

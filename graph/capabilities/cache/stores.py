"""Where a cache keeps its entries: in this process' memory, or in a Redis that several processes share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from deployments.contract.errors import ConfigurationError

logger = logging.getLogger("ray.serve")

# What an entry takes in memory besides its key and its content, bytes: measured, rounded up.
OVERHEAD = 260
# After a failure Redis is left alone for so long.
PAUSE_S = 1.0
# Entries on their way to Redis; more are not kept.
MOST_UNDER_WAY = 256


class Store(Protocol):
    """Keeps entries by key for a time."""

    @property
    def bytes_used(self) -> int:
        """What its entries take in this process."""
        ...

    def __len__(self) -> int:
        """Its entries in this process."""
        ...

    def has(self, key: bytes) -> bool:
        """Whether an entry is in this process."""
        ...

    async def look_up(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The content of each key; None where there is none. Never raises."""
        ...

    def keep(self, key: bytes, content: bytes) -> None:
        """Keep an entry, or not; does not wait. Never raises."""
        ...


class Memory:
    """Keeps the entries that were used last, in bounded memory."""

    def __init__(
        self, max_bytes: int, max_entries: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the bounds of all entries together, how long each lives, and what tells the time, seconds."""
        self._max_bytes, self._max_entries, self._ttl_s, self._clock = max_bytes, max_entries, ttl_s, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes_used = 0

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def has(self, key: bytes) -> bool:
        """See `Store`."""
        found = self._entries.get(key)
        return found is not None and found[0] > self._clock()

    async def look_up(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """See `Store`."""
        return [self._get(key) for key in keys]

    def _get(self, key: bytes) -> bytes | None:
        found = self._entries.get(key)
        if found is None:
            return None
        expires, content = found
        if expires <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return content

    def keep(self, key: bytes, content: bytes) -> None:
        """See `Store`; what was not used for the longest time makes room."""
        if key in self._entries:
            self._remove(key)
        self._entries[key] = self._clock() + self._ttl_s, content
        self.bytes_used += _size(key, content)
        while self.bytes_used > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: bytes) -> None:
        _, content = self._entries.pop(key)
        self.bytes_used -= _size(key, content)


def _size(key: bytes, content: bytes) -> int:
    return len(key) + len(content) + OVERHEAD


class Redis:
    """Keeps entries in a Redis, which bounds its memory itself; while it is down there is no cache."""

    bytes_used = 0

    def __init__(self, url: str, ttl_s: float, timeout_s: float) -> None:
        """Set where it is, how long an entry lives and how long an answer may take; connects when it is first asked.

        Raises:
            ConfigurationError: the client's package is missing, or the URL is none of Redis'.
        """
        try:
            from redis import asyncio as client
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as err:
            raise ConfigurationError("cache.redis needs Redis' client: pip install 'ensemble-serving[redis]'") from err
        try:
            # Not tried again: a cache that is slow is worse than none.
            self._client: Any = client.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
            )
        except ValueError as err:
            raise ConfigurationError(f"cache.redis: {err}") from err
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._timeout_s = timeout_s
        self._down_until: float | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """None in this process."""
        return 0

    def has(self, key: bytes) -> bool:
        """None: to ask Redis takes a while."""
        return False

    async def look_up(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """See `Store`."""
        nothing: list[bytes | None] = [None] * len(keys)
        if not keys or self._is_down:
            return nothing
        try:
            async with asyncio.timeout(self._timeout_s):
                found: Sequence[bytes | None] = await self._client.mget(keys)
        except Exception as err:
            self._failed(err)
            return nothing
        self._answered()
        return found

    def keep(self, key: bytes, content: bytes) -> None:
        """See `Store`."""
        if not self._is_down and len(self._under_way) < MOST_UNDER_WAY:
            task = asyncio.get_running_loop().create_task(self._keep(key, content))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _keep(self, key: bytes, content: bytes) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.set(key, content, px=self._ttl_ms)
        except Exception as err:
            self._failed(err)
        else:
            self._answered()

    @property
    def _is_down(self) -> bool:
        return self._down_until is not None and time.monotonic() < self._down_until

    def _failed(self, error: Exception) -> None:
        if self._down_until is None:
            # The URL may hold a password: it is not told.
            logger.warning("Redis does not answer (%s); there is no cache until it does", type(error).__name__)
        self._down_until = time.monotonic() + PAUSE_S

    def _answered(self) -> None:
        if self._down_until is not None:
            logger.warning("Redis answers again")
            self._down_until = None

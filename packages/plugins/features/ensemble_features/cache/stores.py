"""The settings of a cache, and where it keeps its entries: in this process' memory, or in a Redis for several."""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from deployments.contract.errors import ConfigurationError
from deployments.contract.sections import Fault, Section
from deployments.contract.settings import MIB

logger = logging.getLogger("ray.serve")

# Memory of an entry besides its key and its content, bytes: measured, and rounded up.
OVERHEAD = 260
# Seconds for which Redis is not asked after a failure.
PAUSE_S = 1.0
# Entries that are being written to Redis; further ones are dropped.
MAX_WRITES = 256
URLS = ("redis://", "rediss://", "unix://")
# Of what follows: at most the name of a user before `@`, and no option that is a password.
WITHOUT_PASSWORD = re.compile(r"[a-z]+://([^:@/?#]*@)?(?!.*password=)[^@]*", re.IGNORECASE | re.DOTALL)


def bounded(schema: dict[str, Any]) -> None:
    """Move the bounds of a size to the number in its JSON schema, where Pydantic has 0."""
    schema["anyOf"][1] |= {"minimum": schema.pop("ge"), "maximum": schema.pop("le")}


class CacheSettings(Section):
    """The cache: its place, its size, and how long entries stay."""

    max_bytes: ByteSize = Field(
        ByteSize(64 * MIB),
        ge=64 * 1024,
        le=1024 * 1024 * MIB,
        description="memory of the entries in a process, such as 64MiB",
        json_schema_extra=bounded,
    )
    ttl_s: float = Field(
        600.0, gt=0, le=31_536_000, allow_inf_nan=False, description="how long an image stays cached, seconds"
    )
    redis: str | None = Field(
        None,
        max_length=4096,
        description="URL of a Redis that all processes share; default: the memory of each process",
    )
    redis_password_file: Path | None = Field(None, description="a file with the password of that Redis")
    per_key: bool = Field(
        False, description="whether each API key has entries of its own, so that no key sees what others sent"
    )
    redis_timeout_ms: int = Field(
        50, ge=1, le=10_000, description="longest time for Redis, ms; a slower Redis counts as no cache"
    )

    @field_validator("redis")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(URLS):
            raise ValueError(f"a URL begins with one of {', '.join(URLS)}")
        if url is not None and not WITHOUT_PASSWORD.fullmatch(url):
            raise ValueError("Serve logs it, so the password goes into a file that `redis_password_file` names")
        return url

    @model_validator(mode="after")
    def _can_be_opened(self) -> Self:
        # Here as well, so that errors are reported before anything starts.
        open_store(self)
        return self

    def rules(self, owner: Any, config: Any, agreed: Any) -> Iterator[Fault]:
        """Refuse entries by key where there are no keys."""
        if self.per_key and config.access.keys is None:
            yield Fault("per_key: there are no keys", "set access.keys", is_refused=True)


class Store:
    """Keeps entries by key for a time; this one has none in its process.

    Attributes:
        bytes_used: the memory of its entries in this process.
    """

    bytes_used = 0

    def __len__(self) -> int:
        """Count its entries in this process."""
        return 0

    def has(self, key: bytes) -> bool:
        """Tell whether an entry is in this process."""
        return False

    async def look_up(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Look up the content of each key; None where there is none. Never raises."""
        raise NotImplementedError

    def keep(self, key: bytes, content: bytes) -> None:
        """Keep an entry if there is room; does not wait, and never raises."""
        raise NotImplementedError


class Memory(Store):
    """Keeps the most recently used entries, in bounded memory."""

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the memory of all entries together, how long each lives, and a clock, seconds."""
        self._max_bytes, self._ttl_s, self._clock = max_bytes, ttl_s, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes_used = 0

    def __len__(self) -> int:
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
        """See `Store`; the least recently used entries make room."""
        if key in self._entries:
            self._remove(key)
        self._entries[key] = self._clock() + self._ttl_s, content
        self.bytes_used += _size(key, content)
        while self.bytes_used > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: bytes) -> None:
        _, content = self._entries.pop(key)
        self.bytes_used -= _size(key, content)


def _size(key: bytes, content: bytes) -> int:
    return len(key) + len(content) + OVERHEAD


class Redis(Store):
    """Keeps entries in a Redis, which bounds its own memory; while Redis is down there is no cache."""

    def __init__(self, url: str, ttl_s: float, timeout_s: float, password_file: Path | None = None) -> None:
        """Set its URL, how long an entry lives and how long a reply may take; it connects when it is first used.

        Raises:
            ConfigurationError: the client's package is missing, the URL is wrong, or the password can't be read.
        """
        try:
            from redis import asyncio as client
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as err:
            raise ConfigurationError("cache.redis needs Redis' client: pip install redis") from err
        try:
            password = None if password_file is None else password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as err:
            # The error of a decoder quotes what it could not decode.
            raise ConfigurationError(
                f"cache.redis_password_file: can't read {password_file} ({type(err).__name__})"
            ) from None
        limits: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        try:
            # Without retries: a slow cache is worse than none.
            self._client: Any = client.Redis.from_url(url, password=password, retry=Retry(NoBackoff(), 0), **limits)
        except ValueError as err:
            raise ConfigurationError(f"cache.redis: {err}") from err
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._timeout_s = timeout_s
        self._down_until: float | None = None
        self._writes: set[asyncio.Task[Any]] = set()

    async def look_up(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """See `Store`."""
        found = await self._ask(self._client.mget(keys)) if keys and not self._is_down else None
        return found or [None] * len(keys)

    def keep(self, key: bytes, content: bytes) -> None:
        """See `Store`."""
        if not self._is_down and len(self._writes) < MAX_WRITES:
            write = self._ask(self._client.set(key, content, px=self._ttl_ms))
            task = asyncio.get_running_loop().create_task(write)
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    @property
    def _is_down(self) -> bool:
        return self._down_until is not None and time.monotonic() < self._down_until

    async def _ask(self, command: Awaitable[Any]) -> Any:
        """Return Redis' reply to a command; None if there is none in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await command
        except Exception as err:
            if self._down_until is None:
                logger.warning("Redis does not answer (%s); there is no cache until it does", type(err).__name__)
            self._down_until = time.monotonic() + PAUSE_S
            return None
        if self._down_until is not None:
            logger.warning("Redis answers again")
            self._down_until = None
        return reply


def open_store(settings: CacheSettings) -> Store:
    """Make the store of the section `cache`.

    Raises:
        ConfigurationError: Redis' client is missing, its URL is wrong, or its password can't be read.
    """
    if settings.redis is None:
        return Memory(settings.max_bytes, settings.ttl_s)
    return Redis(settings.redis, settings.ttl_s, settings.redis_timeout_ms / 1000, settings.redis_password_file)

"""Authentication and rates: callers show an API key, alike for every protocol."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from deployments.contract.counting import TaggedCounter
from deployments.contract.errors import ConfigurationError, RateLimited, Unauthenticated
from deployments.contract.sections import Extensible
from deployments.ingress import keys

SCHEME = "bearer "
HINT = "send the header, or in gRPC the metadata, 'authorization: Bearer <key>'"
# A key may make the requests of this many seconds at one moment, after a while without any; but one always.
SAVED_S = 1.0
# Less than this is the clock's rounding, seconds.
NOTHING_S = 1e-6


class AccessConfig(Extensible):
    """API keys, and the rights of their owners."""

    at: ClassVar[str] = "access"

    keys: Path | None = Field(
        None, description="file of API keys (ensemble keys add NAME --file FILE); without it no key is needed"
    )

    @field_validator("keys")
    @classmethod
    def _they_can_be_read(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        try:
            keys.read(path)
        except ConfigurationError as err:
            raise ValueError(str(err)) from err
        return path.absolute()


class Access:
    """Admits callers that show a key, no faster than the key's rate."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the keys; `clock` is in seconds.

        Raises:
            ConfigurationError: they can't be read.
        """
        self._keys, self._clock = keys.KeyFile(path, clock), clock
        # By the name of a key, when its next request is due.
        self._due: dict[str, float] = {}
        self._requests = TaggedCounter(
            "ensemble_key_requests",
            "Requests by key: admitted, rate_limited, or without a name unauthenticated.",
            "key",
            "outcome",
        )

    def admit(self, authorization: str | None) -> str:
        """Return the name of the key that a caller shows in its `authorization`, if the caller has sent one.

        Raises:
            Unauthenticated: it shows none, or an unknown one.
            RateLimited: it makes more requests than its key may.
        """
        shown = authorization or ""
        is_bearer = shown[: len(SCHEME)].lower() == SCHEME
        key = self._keys.find(shown[len(SCHEME) :].strip()) if is_bearer else None
        if key is None:
            self._requests.add("", Unauthenticated.code)
            raise Unauthenticated(f"the key is not known; {HINT}" if is_bearer else f"a key is needed; {HINT}")
        if key.rate is not None and (wait_s := self._wait_s(key.name, key.rate)):
            self._requests.add(key.name, RateLimited.code)
            raise RateLimited(
                f"the key {key.name!r} may make {key.rate:g} requests a second; try again in {math.ceil(wait_s)} s",
                retry_after_s=wait_s,
            )
        self._requests.add(key.name, "admitted")
        return key.name

    def _wait_s(self, name: str, rate: float) -> float:
        """Return the seconds by which a request comes too early; count a request that does not."""
        now = self._clock()
        due = max(self._due.get(name, 0.0), now - max(SAVED_S - 1 / rate, 0.0))
        if due - now > NOTHING_S:
            return due - now
        self._due[name] = due + 1 / rate
        return 0.0

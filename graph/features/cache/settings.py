"""The section `cache`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ByteSize, Field, field_validator

from deployments.contract.settings import MIB, Schema
from graph.features.cache.stores import Memory, Redis, Store

URLS = ("redis://", "rediss://", "unix://")
# Of what follows: at most the name of a user before `@`, and no option that is a password.
WITHOUT_PASSWORD = re.compile(r"[a-z]+://([^:@/?#]*@)?(?!.*password=)[^@]*", re.IGNORECASE | re.DOTALL)


def bounded(schema: dict[str, Any]) -> None:
    """Move the bounds of a size to the number in its JSON schema, where Pydantic has 0."""
    schema["anyOf"][1] |= {"minimum": schema.pop("ge"), "maximum": schema.pop("le")}


class CacheSettings(Schema):
    """What is cached, where, and for how long."""

    max_bytes: ByteSize = Field(
        ByteSize(64 * MIB),
        ge=64 * 1024,
        le=1024 * 1024 * MIB,
        description="memory of the entries in a process, such as 64MiB",
        json_schema_extra=bounded,
    )
    max_entries: int = Field(1_000_000, ge=1, le=1_000_000_000, description="images cached in memory")
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
        50, ge=1, le=10_000, description="how long Redis may take, ms; beyond it there is no cache"
    )

    @field_validator("redis")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(URLS):
            raise ValueError(f"a URL begins with one of {', '.join(URLS)}")
        if url is not None and not WITHOUT_PASSWORD.fullmatch(url):
            raise ValueError("Serve logs it, so the password goes into a file that `redis_password_file` names")
        return url

    def store(self) -> Store:
        """Where entries are kept.

        Raises:
            ConfigurationError: Redis' client is missing, its URL is wrong, or its password can't be read.
        """
        if self.redis is None:
            return Memory(self.max_bytes, self.max_entries, self.ttl_s)
        return Redis(self.redis, self.ttl_s, self.redis_timeout_ms / 1000, self.redis_password_file)

"""What a caller can ask for besides the label: a new option is a field here, for every protocol and in the OpenAPI."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# What an answer shows, and when: members predict the same whatever these are. All others enter the key of a cache.
OF_THE_ANSWER = frozenset({"top_k", "members", "timeout_ms", "cache", "timings"})


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a request; the HTTP query, the Open Inference Protocol's parameters, a handle's keywords."""

    top_k: Annotated[int, Meta(ge=1, le=100_000, description="classes to list; default: the labeler's")] | None = None
    members: Annotated[bool, Meta(description="list each member's own answer")] = False
    timeout_ms: (
        Annotated[int, Meta(ge=1, le=3_600_000, description="deadline from when the request began to arrive, ms")]
        | None
    ) = None
    cache: (
        Annotated[
            Literal["no-cache", "no-store"],
            Meta(description="`no-cache` asks the members anew; `no-store` does, and does not remember their answer"),
        ]
        | None
    ) = None
    quality: (
        Annotated[Literal["full"], Meta(description="`full` asks every member, where a cascade would ask fewer")] | None
    ) = None
    timings: Annotated[bool, Meta(description="list where the image's time went")] = False


ENCODER = msgspec.msgpack.Encoder(order="deterministic")
# The options that change what members predict.
DECISIVE = tuple(name for name in Options.__struct_fields__ if name not in OF_THE_ANSWER)
NOTHING = Options()


def decisive(options: Options) -> bytes:
    """What changes predictions: two requests that differ in it share nothing of a cache; empty where all is default."""
    told = {name: value for name in DECISIVE if (value := getattr(options, name)) != getattr(NOTHING, name)}
    return ENCODER.encode(told) if told else b""

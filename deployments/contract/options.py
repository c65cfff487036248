"""The options of a request: a new one is a field here, and every protocol and the OpenAPI document have it."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

# The most classes of a model; ImageNet-21k has a fifth as many. Numbers in a request are bounded by it early.
MAX_CLASSES = 100_000
# The options that add to an answer what it shows besides the most probable class.
SHOWN = frozenset({"top_k", "members", "timings", "receipt"})
# The options that do not change predictions.
# Features note what their options decide on the image.
PRESENTATION = SHOWN | {"timeout_ms", "cache", "priority", "added"}
# From which priority on a request is of the lower class: 1 is the highest, 0 the default; and Triton's greatest.
LOWER, MAX_PRIORITY = 2, 2**32 - 1


class AddedOptions(msgspec.Struct, frozen=True):
    """Options that a feature adds: the fields of a subclass, each with the default None.

    Attributes:
        remedy: what to do where the application does not read them.
    """

    remedy: ClassVar[str] = ""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a request: the HTTP query, the parameters of the Open Inference Protocol, a handle's keywords."""

    top_k: Annotated[int, Meta(ge=1, le=MAX_CLASSES, description="classes to list; default: the labeler's")] | None = (
        None
    )
    members: Annotated[bool, Meta(description="list each member's own answer")] = False
    timeout_ms: (
        Annotated[int, Meta(ge=1, le=3_600_000, description="deadline from when the request began to arrive, ms")]
        | None
    ) = None
    cache: (
        Annotated[
            Literal["no-cache", "no-store"],
            Meta(description="`no-cache` calls the members again; `no-store` also caches nothing"),
        ]
        | None
    ) = None
    quality: (
        Annotated[Literal["full"], Meta(description="`full` calls every member, where fewer may be called")] | None
    ) = None
    timings: Annotated[bool, Meta(description="list where the image's time went")] = False
    receipt: Annotated[bool, Meta(description="list CPU time and bytes of each node")] = False
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_PRIORITY,
            description="0 and 1 for the usual class; from 2 on the lower class, which overload refuses first",
        ),
    ] = 0
    # What features add; no client sends this name.
    added: tuple[Any, ...] = ()

    def chosen(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, by name, and the options that features add."""
        every = {name: value for each in (self, *self.added) for name, value in msgspec.structs.asdict(each).items()}
        default = msgspec.structs.asdict(Options(added=every.pop("added")))
        return {name: value for name, value in every.items() if value != default.get(name)}

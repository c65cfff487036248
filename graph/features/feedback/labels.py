"""True labels as clients send them, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from deployments.contract.caller import MAX_ID
from deployments.contract.errors import EnsembleError, InvalidParameter, UnknownRequest

# Labels in one request; the highest position of an image in its request.
MAX_LABELS, MAX_PLACE = 4096, 100_000

# Takes a label by the request's id, the class, the image's position, and the name of the caller's key, empty for none;
# raises as `FeedbackStore.take`.
TakesLabel = Callable[[str, str | int, int, str], Awaitable[None]]
T = TypeVar("T")


class TrueLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The true class of an image."""

    request_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID, description="`X-Request-Id` of the answer")]
    label: Annotated[str | int, Meta(description="the class' name, or its index")]
    index: Annotated[int, Meta(ge=0, le=MAX_PLACE, description="of the image in its request")] = 0


async def refuse(*_: object) -> None:
    """Raise UnknownRequest."""
    raise UnknownRequest("no labels are taken; configure `feedback`")


async def taken(
    take: TakesLabel, read: Callable[[T], TrueLabel], sent: Sequence[T], key: str
) -> list[EnsembleError | None]:
    """Take labels in order, each as `read` reads it, for the key of that name; returns the error of each, or None.

    Raises:
        InvalidParameter: there are none, or too many.
    """
    if not 1 <= len(sent) <= MAX_LABELS:
        raise InvalidParameter(f"a request holds 1 to {MAX_LABELS} labels; this one has {len(sent)}")
    results: list[EnsembleError | None] = []
    for each in sent:
        try:
            found = read(each)
            await take(found.request_id, found.label, found.index, key)
            results.append(None)
        except EnsembleError as err:
            results.append(err.with_traceback(None))
    return results

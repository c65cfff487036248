"""The payload of a batch: a row per image, as a list, an array, or several of them by name."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from deployments.contract.preprocessing import Preprocessing

# BGR, uint8 [N,height,width,3].
Pixels = NDArray[np.uint8]
# The input of a member: pixels, or the images as they were sent.
Images = Pixels | Sequence[bytes]
# float32 [N,classes], rows that sum to 1.
Probabilities = NDArray[np.float32]
# Those of each member by name; a row of NaN where the member did not answer.
MemberProbabilities = Mapping[str, Probabilities]

P = TypeVar("P")


class CombinedProbabilities(dict[str, Probabilities]):
    """Members' predictions with their combination, float32 [N,C], of the same call; a copy is not combined."""

    def __init__(self, by_member: MemberProbabilities, combined: Probabilities) -> None:
        super().__init__(by_member)
        self.combined = combined


class Decoded(NamedTuple):
    """A decoded image.

    Attributes:
        pixels: for each preprocessing, uint8 [H,W,3] BGR.
        size: its width and height.
        warning: a fault of its file; empty for none.
        make: makes the pixels for a further preprocessing.
    """

    pixels: list[Pixels]
    size: tuple[int, int]
    warning: str = ""
    make: Callable[[Preprocessing], Pixels] | None = None


class Deferred(NamedTuple):
    """Pixels that are made when a member asks for them, in the process that decoded the images.

    Attributes:
        images: a decoded image for each row.
        make: makes the pixels: a batch with these as its payload, to a batch with `Pixels`.
    """

    images: Sequence[Decoded]
    make: Callable[[Any], Coroutine[Any, Any, Any]]


# The input of each member, by the key of its `MemberInput`.
PixelSets = Mapping[str, Images | Deferred]


def byte_size(payload: Any) -> int | None:
    """Return the bytes of a payload, without deferred pixels; None if it has other things than arrays and bytes."""
    if isinstance(payload, Deferred):
        return 0
    if isinstance(payload, bytes):
        return len(payload)
    if isinstance(payload, np.ndarray):
        return payload.nbytes
    if not isinstance(payload, Mapping | list | tuple):
        return None
    sizes = [byte_size(part) for part in (payload.values() if isinstance(payload, Mapping) else payload)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def take(payload: P, rows: Sequence[int]) -> P:
    """Return the payload of these rows, in this order."""
    if isinstance(payload, np.ndarray):
        return cast(P, payload[np.asarray(rows, np.intp)])
    if isinstance(payload, Mapping):
        return cast(P, {name: take(part, rows) for name, part in payload.items()})
    if isinstance(payload, Deferred):
        return cast(P, payload._replace(images=[payload.images[row] for row in rows]))
    listed = cast(Sequence[Any], payload)
    return cast(P, [listed[row] for row in rows])


def gather(parts: Sequence[tuple[Sequence[int], P]], count: int) -> P:
    """Gather one payload of `count` rows from several parts, each with the positions of its rows.

    In arrays by name, a row that no part has is NaN.
    """
    # The payload of images that have all failed is of no particular type.
    filled = [(rows, part) for rows, part in parts if len(rows)]
    whole = filled[0][1] if filled else parts[0][1]
    if len(parts) == 1 and list(parts[0][0]) == list(range(count)):
        return whole
    if isinstance(whole, Mapping):
        return cast(P, _gather_by_name(cast(Any, parts), count))
    if isinstance(whole, Deferred):
        images = [(rows, cast(Deferred, part).images) for rows, part in filled]
        return cast(P, whole._replace(images=gather(images, count)))
    if isinstance(whole, np.ndarray):
        return cast(P, _gather_rows(cast(Any, filled), count)) if filled else whole
    return cast(P, _gather_list(cast(Any, filled), count))


def _gather_list(parts: Sequence[tuple[Sequence[int], Sequence[Any]]], count: int) -> list[Any]:
    gathered: list[Any] = [None] * count
    for rows, part in parts:
        for row, value in zip(rows, part, strict=True):
            gathered[row] = value
    return gathered


def _gather_by_name(parts: Sequence[tuple[Sequence[int], Mapping[str, Any]]], count: int) -> dict[str, Any]:
    names = dict.fromkeys(name for _, part in parts for name in part)
    return {name: gather([(rows, part[name]) for rows, part in parts if name in part], count) for name in names}


def _gather_rows(parts: Sequence[tuple[Sequence[int], NDArray[Any]]], count: int) -> NDArray[Any]:
    """Gather rows of arrays; rows that no part has are NaN."""
    first = parts[0][1]
    if sum(len(rows) for rows, _ in parts) == count:
        result = np.empty((count, *first.shape[1:]), first.dtype)
    else:
        result = np.full((count, *first.shape[1:]), np.nan, first.dtype)
    for rows, array in parts:
        result[np.asarray(rows, np.intp)] = array
    return result

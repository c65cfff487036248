"""The payload of a batch: a row per image, as a list, an array, or several of them by name."""

from __future__ import annotations

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
    """Members' predictions, and what they were combined to in the same call, float32 [N,C]; a copy is not combined."""

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
    whole = next((part for rows, part in parts if len(rows)), parts[0][1])
    if len(parts) == 1 and list(parts[0][0]) == list(range(count)):
        return whole
    if isinstance(whole, Mapping):
        names = dict.fromkeys(name for _, part in parts for name in cast(Mapping[str, Any], part))
        return cast(
            P,
            {
                name: gather([(rows, part[name]) for rows, part in cast(Any, parts) if name in part], count)
                for name in names
            },
        )
    if isinstance(whole, Deferred):
        images = [(rows, cast(Deferred, part).images) for rows, part in parts if len(rows)]
        return cast(P, whole._replace(images=gather(images, count)))
    if isinstance(whole, np.ndarray):
        arrays = [(rows, cast(NDArray[Any], part)) for rows, part in parts if len(rows)]
        if not arrays:
            return whole
        shape, dtype = arrays[0][1].shape[1:], arrays[0][1].dtype
        filled = sum(len(rows) for rows, _ in arrays) == count
        result = np.empty((count, *shape), dtype) if filled else np.full((count, *shape), np.nan, dtype)
        for rows, array in arrays:
            result[np.asarray(rows, np.intp)] = array
        return cast(P, result)
    rows_of: list[Any] = [None] * count
    for rows, part in parts:
        for row, value in zip(rows, cast(Sequence[Any], part), strict=True):
            rows_of[row] = value
    return cast(P, rows_of)

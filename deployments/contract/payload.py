"""What a batch carries: a row for each image, as a list, as an array, or as several of them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

# BGR, uint8 [N,height,width,3].
Pixels = NDArray[np.uint8]
# What a member gets: pixels, or the images as they were sent.
Images = Pixels | Sequence[bytes]
# One set of pixels for each preprocessing that a member wants, by its key; and the images as they were sent, likewise.
PixelSets = Mapping[str, Images]
# float32 [N,classes], rows that sum to 1.
Probabilities = NDArray[np.float32]
# Each member's, by name; a row of NaN where it did not answer.
Ballots = Mapping[str, Probabilities]

P = TypeVar("P")


def take(payload: P, rows: Sequence[int]) -> P:
    """The payload of these rows, in this order."""
    if isinstance(payload, np.ndarray):
        return cast(P, payload[np.asarray(rows, np.intp)])
    if isinstance(payload, Mapping):
        return cast(P, {name: take(part, rows) for name, part in payload.items()})
    listed = cast(Sequence[Any], payload)
    return cast(P, [listed[row] for row in rows])


def gather(parts: Sequence[tuple[Sequence[int], P]], count: int) -> P:
    """One payload of `count` rows out of several: each part's rows go where its positions say.

    Of arrays by name, a row that no part has is NaN.
    """
    # A part of images that have all failed has a payload of no kind in particular.
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

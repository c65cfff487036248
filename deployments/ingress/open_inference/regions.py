"""Tensors in shared memory: the parameters of a tensor that name its place, and reading and writing there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from deployments.contract.errors import ImageTooLarge, InvalidParameter
from deployments.ingress.open_inference.model import Requested
from deployments.ingress.shared_memory import Regions

REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


class Place(NamedTuple):
    """A part of a region: its name, and bytes."""

    region: str
    size: int
    offset: int


def place(parameters: Mapping[str, Any]) -> Place | None:
    """The place that the parameters of a tensor name, None for none; raises InvalidParameter if they are malformed."""
    if REGION not in parameters:
        return None
    found = Place(parameters[REGION], parameters.get(SIZE, 0), parameters.get(OFFSET, 0))
    if [type(each) for each in found] != [str, int, int]:
        raise InvalidParameter(f"{REGION!r} must be a name, {SIZE!r} and {OFFSET!r} numbers of bytes")
    return found


def taken(regions: Regions, where: Place, limit: int) -> bytes:
    """The bytes of a tensor in shared memory.

    Raises:
        ImageTooLarge: there are more than `limit`.
        EnsembleError: as `Regions.read`.
    """
    if where.size > limit:
        raise ImageTooLarge(f"the tensor has {where.size} bytes; at most {limit} are accepted")
    return regions.read(where.region, where.size, where.offset)


def check(regions: Regions, outputs: Iterable[Requested]) -> None:
    """Raise as `put` does if a place for one of the outputs can't be written; called before there are any outputs."""
    for output in outputs:
        if (where := place(output.parameters)) is not None:
            regions.check(where.region, where.size, where.offset)


def put(regions: Regions, where: Place, raw: bytes) -> dict[str, Any]:
    """Write a tensor into shared memory; the parameters that name its place. Raises as `Regions.write`."""
    regions.write(where.region, raw, where.size, where.offset)
    offset = {OFFSET: where.offset} if where.offset else {}
    return {REGION: where.region, SIZE: len(raw), **offset}

"""What a protocol does: asks one address of a model server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from deployments.remote.tensors import Described, Fit

# What a model answers, as it answers it, and the version that did.
Answered = tuple[NDArray[Any], str]


class Server(Protocol):
    """One address of a model server. Every method raises a `CallError` and nothing else."""

    async def describe(self, timeout_s: float) -> Described:
        """What the model takes and gives; raises if it isn't ready."""
        ...

    async def infer(
        self, how: Fit, images: NDArray[Any] | Sequence[bytes], headers: Mapping[str, str], timeout_s: float
    ) -> Answered:
        """The scores of images: packed pixels, or images as they were sent."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

"""The protocol of the clients of a model server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from deployments.contract.payload import Images
from deployments.tensors import Binding, ModelMetadata


class Output(NamedTuple):
    """A model's output tensor, and the version that computed it; empty if the server does not report it."""

    values: NDArray[Any]
    version: str


class Client(Protocol):
    """A client of one endpoint of a model server. Its methods raise `CallError`."""

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """Read the model's tensors; raises CallError if it is not ready, IncompatibleModel if it can't be a member."""
        ...

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """Compute the output for images: an array as `convert_pixels` makes it, or encoded images."""
        ...

    async def close(self) -> None:
        """Close the connections; the next call opens others."""
        ...

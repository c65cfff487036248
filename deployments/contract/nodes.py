"""The protocols of nodes: one of every node, and further protocols of some nodes."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch

P = TypeVar("P", contravariant=True)
Q = TypeVar("Q", covariant=True)


class Node(Protocol[P, Q]):
    """A part of the graph: a batch in, a batch of the same images out. The failure of one image does not raise."""

    async def __call__(self, batch: Batch[P], /) -> Batch[Q]:
        """Work on a batch."""
        ...


# A graph takes encoded images and gives answers.
Graph = Node[Sequence[bytes], Sequence[Answer]]

# Some images of a batch that are done: their positions in the batch, and the batch of them.
Part = tuple[Sequence[int], Batch[Any]]


class Flow(ABC):
    """A node that returns images as soon as they are done, before others of the batch may be.

    Attributes:
        first_pixels: of a node that asks members, the keys of the pixels that it takes of every image; None for all.
    """

    first_pixels: frozenset[str] | None = None

    @abstractmethod
    def parts(self, batch: Batch[Any]) -> AsyncIterator[Part]:
        """Work on a batch, and return each image once, in parts as they are done."""

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Work on a batch, and return it when every image is done."""
        return Batch.join([part async for part in self.parts(batch)])


class Whole(Flow):
    """A flow of a node that returns a batch as one part."""

    def __init__(self, node: Node[Any, Any]) -> None:
        self._node = node

    async def parts(self, batch: Batch[Any]) -> AsyncIterator[Part]:
        """Return the node's batch as the one part."""
        yield range(len(batch.items)), await self._node(batch)


def as_flow(node: Node[Any, Any]) -> Flow:
    """Return the node if it is a flow, else the node as a flow of one part; called where nodes are joined."""
    return node if isinstance(node, Flow) else Whole(node)


@runtime_checkable
class Adjustable(Protocol):
    """A node whose settings `user_config` changes while it serves.

    If settings can be unusable although each field is valid, it has a method `check(settings)`, which raises
    ConfigurationError for them.
    """

    settings: Any


@runtime_checkable
class HealthChecked(Protocol):
    """A node that reports its health."""

    def check_health(self) -> None:
        """Raise an exception if it can't work any more; must not wait."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A node that serves a version of a model.

    If the version can change while it serves, `refused` counts the versions that it could not serve.
    """

    name: str
    version: Any


@runtime_checkable
class Remote(Protocol):
    """A node that calls another server."""

    name: str

    def addresses(self) -> tuple[int, int]:
        """Count the server's healthy addresses and its unhealthy ones; callable from any thread."""
        ...

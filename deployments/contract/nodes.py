"""What a node is, and what else it may be able to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch

P = TypeVar("P", contravariant=True)
Q = TypeVar("Q", covariant=True)


class Node(Protocol[P, Q]):
    """A part of the graph: a batch in, a batch of the same images out. It never raises for one image's sake."""

    async def __call__(self, batch: Batch[P], /) -> Batch[Q]:
        """Work on a batch."""
        ...


# From encoded images to answers.
Graph = Node[Sequence[bytes], Sequence[Answer]]

# Some images of a batch: their positions in it, and what was made of them.
Part = tuple[Sequence[int], Batch[Any]]


@runtime_checkable
class Parted(Protocol):
    """A node whose images need not wait for each other."""

    def parts(self, batch: Batch[Any], /) -> AsyncIterator[Part]:
        """Work on a batch, and give each image, once, as soon as it is done."""
        ...


async def joined(parts: AsyncIterator[Part]) -> Batch[Any]:
    """A batch whose images have come one part after the other."""
    return Batch.join([part async for part in parts])


async def parts(node: Node[Any, Any], batch: Batch[Any]) -> AsyncIterator[Part]:
    """What a node makes of a batch: image by image as it is done, where the node can part them, else all at once."""
    if isinstance(node, Parted):
        async for part in node.parts(batch):
            yield part
    else:
        yield range(len(batch.items)), await node(batch)


@runtime_checkable
class Adjustable(Protocol):
    """A node whose settings change while it serves, through `user_config`."""

    settings: Any

    def check(self, settings: Any) -> None:
        """Raise ConfigurationError for settings that it can't work by, though each field is right."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A node that can tell when it is unwell."""

    def check_health(self) -> None:
        """Raise if it can't work any more; must not wait."""
        ...


@runtime_checkable
class Swappable(Protocol):
    """A node whose model's version can change while it serves; `refused` counts the versions that were not taken."""

    name: str
    refused: int


@runtime_checkable
class Versioned(Protocol):
    """A node that serves a version of a model."""

    name: str
    version: Any


@runtime_checkable
class Remote(Protocol):
    """A node that asks another server."""

    name: str

    def addresses(self) -> tuple[int, int]:
        """How many of the server's addresses are asked, and how many are left alone; from any thread."""
        ...

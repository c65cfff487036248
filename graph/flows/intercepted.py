"""The graph with interceptors around it: each may mark images on their way in, and sees answers on their way out."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.item import Item
from deployments.contract.nodes import Graph, Part, joined, parts
from graph.flows.record import Record

logger = logging.getLogger("ray.serve")


@dataclass(eq=False)
class InFlight:
    """A batch on its way through the graph.

    Attributes:
        sent: the images as they came.
        images: the encoded image of each that has not failed, by position.
        items: the images as they go on; interceptors mark them here.
        positions: of those that somebody sent: what warms members up never waited, and nothing is tried on it.
        records: what came of each image that is answered, by position.
    """

    sent: Sequence[Item]
    images: Mapping[int, bytes]
    items: list[Item]
    positions: Sequence[int]
    records: dict[int, Record] = field(default_factory=dict)


class Interceptor:
    """Looks at batches on their way; each method does nothing unless it is overridden."""

    def on_request(self, batch: InFlight) -> None:
        """Mark images before the graph gets them."""

    def on_answer(self, batch: InFlight, position: int, item: Item) -> None:
        """See the answer to an image, which is in `records`, and the item that it came with."""

    def on_end(self, batch: InFlight) -> None:
        """See the whole batch, when every image is answered or nobody waits any more."""


class Intercepted:
    """A graph with interceptors around it."""

    def __init__(self, graph: Graph, interceptors: Sequence[Interceptor]) -> None:
        """Set the graph, from encoded images to answers, and the interceptors in the order in which each looks."""
        self._graph, self._interceptors = graph, interceptors

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Encoded images to answers."""
        return await joined(self.parts(batch))

    async def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """The same, as the graph gives them."""
        images = dict(zip(batch.live, batch.payload, strict=True))
        positions = [p for p in batch.live if batch.items[p].queued_ns]
        passing = InFlight(batch.items, images, list(batch.items), positions)
        for each in self._interceptors:
            each.on_request(passing)
        items = tuple(item if item.by is ANYONE else replace(item, by=_known(item.by)) for item in passing.items)
        try:
            async for places, part in parts(self._graph, Batch(batch.payload, items)):
                with logged():
                    self._look(passing, places, part)
                yield places, part
        finally:
            for each in self._interceptors:
                with logged():
                    each.on_end(passing)

    def _look(self, batch: InFlight, places: Sequence[int], part: Batch[Sequence[Answer]]) -> None:
        for row, answer in zip(part.live, part.payload, strict=True):
            item, position = part.items[row], places[row]
            if batch.sent[position].queued_ns:
                batch.records[position] = Record.of(item, answer)
                for each in self._interceptors:
                    each.on_answer(batch, position, item)


def _known(by: Caller) -> Caller:
    """Who asks, as far as it is others' business further on: a cache may go by the key's name."""
    return Caller(name=by.name) if by.name else ANYONE


@contextmanager
def logged() -> Iterator[None]:
    """The answers are there, whatever becomes of what is noted of them."""
    try:
        yield
    except Exception:
        logger.exception("an interceptor failed; the answers are given")

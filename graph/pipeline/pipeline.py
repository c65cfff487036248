"""One node after another, and interceptors around a graph: they mark images, see the answers, and add to them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.nodes import Flow, Graph, Node, Part, as_flow
from graph.pipeline.record import Record

logger = logging.getLogger("ray.serve")

Answered = Batch[Sequence[Answer]]


class Pipeline(Flow):
    """Nodes in a row, each of which takes what the one before returns. Without a live image the rest are not called."""

    def __init__(self, first: Node[Any, Any], *rest: Node[Any, Any]) -> None:
        self._first, self._rest = as_flow(first), Pipeline(*rest) if rest else None

    async def parts(self, batch: Batch[Any]) -> AsyncIterator[Part]:
        """Return what the last node returns; a part that one node returns passes the rest before the other parts."""
        if not batch.live:
            yield range(len(batch.items)), Batch([], batch.items)
            return
        async for positions, part in self._first.parts(batch):
            if self._rest is None:
                yield positions, part if part.live else Batch([], part.items)
            else:
                async for places, done in self._rest.parts(part):
                    yield [positions[place] for place in places], done


@dataclass(eq=False)
class InFlight:
    """A batch on its way through the graph.

    Attributes:
        sent: the batch as it came.
        items: its items as the graph gets them; interceptors mark them here.
        records: the predictions for each image that was asked for by `answered`, by position.
    """

    sent: Batch[Sequence[bytes]]
    items: list[Item]
    records: dict[int, Record] = field(default_factory=dict)

    @property
    def images(self) -> Mapping[int, bytes]:
        """The images that clients sent, by position. Warm-up images have no place in the queue, and are left out."""
        images = zip(self.sent.live, self.sent.payload, strict=True)
        return {position: image for position, image in images if self.sent.items[position].queued_ns}

    def answered(self, positions: Sequence[int], part: Answered) -> list[tuple[int, Item, Record]]:
        """Keep the predictions for a part's images that clients sent; each one's position, item and predictions."""
        found = []
        for row, answer in zip(part.live, part.payload, strict=True):
            position, item = positions[row], part.items[row]
            if self.sent.items[position].queued_ns:
                if position not in self.records:
                    self.records[position] = Record.of(item, answer)
                found.append((position, item, self.records[position]))
        return found


class Interceptor:
    """Sees batches before and after the graph. Each method does nothing unless it is overridden.

    Attributes:
        of_members: whether it sees batches of members that are asked by themselves, too.
    """

    of_members = False

    def sees(self, batch: Batch[Sequence[bytes]]) -> bool:
        """Tell whether the other methods are to be called for a batch."""
        return True

    def on_request(self, batch: InFlight) -> None:
        """Mark images in `batch.items` before the graph gets them."""

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """See some of the images when they are done, by their positions; what is returned goes on in their place."""
        return part

    def on_end(self, batch: InFlight) -> None:
        """See the batch when every image is done, or when the batch was cancelled."""


class Intercepted(Flow):
    """A graph with interceptors around it."""

    def __init__(self, graph: Graph, interceptors: Sequence[Interceptor]) -> None:
        """Set the graph, from encoded images to answers, and the interceptors in the order in which they are called."""
        self._graph, self._interceptors = as_flow(graph), interceptors

    def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """Turn encoded images into answers, in the parts that the graph returns."""
        interceptors = [each for each in self._interceptors if each.sees(batch)]
        return self._seen(interceptors, batch) if interceptors else self._graph.parts(batch)

    async def _seen(self, interceptors: Sequence[Interceptor], batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        in_flight = InFlight(batch, list(batch.items))
        for each in interceptors:
            each.on_request(in_flight)
        try:
            async for positions, part in self._graph.parts(Batch(batch.payload, tuple(in_flight.items))):
                for each in interceptors:
                    with logged():
                        part = each.on_part(in_flight, positions, part)
                yield positions, part
        finally:
            for each in interceptors:
                with logged():
                    each.on_end(in_flight)


@contextmanager
def logged() -> Iterator[None]:
    """Log what an interceptor raises: the answers are returned all the same."""
    try:
        yield
    except Exception:
        logger.exception("an interceptor failed; the answers are returned")

"""The graph with what is tried in it: decides what is tried on which image, and tells what came of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from msgspec.structs import replace

from deployments.contract.answer import Answer
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.item import Item
from deployments.contract.nodes import Graph, Part, joined, parts
from deployments.contract.rollout import RolloutStats, no_labels
from graph.flows.feedback import Book
from graph.flows.seen import Seen
from graph.flows.shadow import Copy, Shadow, Tap
from graph.flows.trial import Trial

logger = logging.getLogger("ray.serve")

# Where in `user_config` the settings of what is tried are, by the member's name.
CANARIES, SHADOWS = "canaries", "shadows"
SECTIONS = (CANARIES, SHADOWS)
# A request's own id, over HTTP and in gRPC's metadata.
REQUEST_IDS = ("x-request-id", "request_id")


class Rollout:
    """Marks images on their way in, and looks at the answers on their way out.

    Attributes:
        live: what can change while it serves, by its name.
        headers: those of a request that decide something.
    """

    def __init__(
        self,
        graph: Graph,
        trials: Sequence[Trial] = (),
        shadows: Sequence[Shadow] = (),
        tap: Tap | None = None,
        patience_ms: int | None = None,
        book: Book | None = None,
    ) -> None:
        """Set the graph and what is tried.

        Args:
            graph: from encoded images to answers.
            trials: the canaries in it.
            shadows: get copies of what passes the `tap`.
            tap: stands in the graph before the members; None without shadows.
            patience_ms: how long a shadow may take, if something says so.
            book: remembers answers until their labels are told; None if none are taken.
        """
        self._graph, self._trials, self._shadows = graph, trials, shadows
        self._tap, self._patience_ms = tap, patience_ms
        self._book = book
        self._numbers = count(1)
        self._canaries = tuple(trial.name for trial in trials)
        self.live: Mapping[str, Any] = {
            **{f"{CANARIES}.{trial.name}": trial for trial in trials},
            **{f"{SHADOWS}.{shadow.name}": shadow for shadow in shadows},
        }
        headers = [trial.header for trial in trials if trial.header is not None]
        if book is not None:
            headers += REQUEST_IDS
            for shadow in shadows:
                shadow.judge = book.shadowed
        self.headers = tuple(dict.fromkeys(headers))

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        """Encoded images to answers."""
        return await joined(self.parts(batch))

    async def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """The same, as the graph gives them; shadows get their copies when all are answered."""
        rows = dict(zip(batch.live, batch.payload, strict=True))
        items = [self._marked(item, rows.get(position, b"")) for position, item in enumerate(batch.items)]
        drawn = {shadow: positions for shadow in self._shadows if (positions := shadow.draw(items))}
        kept = {} if self._tap is None else self._tap.kept
        for position in {position for positions in drawn.values() for position in positions}:
            items[position] = replace(items[position], number=next(self._numbers))
            kept[items[position].number] = None
        seen: dict[int, Seen] = {}
        try:
            async for places, part in parts(self._graph, Batch(batch.payload, tuple(items))):
                with logged():
                    seen |= self._look(batch.items, places, part)
                yield places, part
        finally:
            copies = {position: kept.pop(item.number) for position, item in enumerate(items) if item.number in kept}
            # What a cache remembers has no pixels.
            there: dict[int, Copy] = {p: (copy, seen[p]) for p, copy in copies.items() if copy and p in seen}
            for shadow, positions in drawn.items():
                if copied := [there[position] for position in positions if position in there]:
                    with logged():
                        shadow.ask(copied, self._patience_ms)

    def _marked(self, item: Item, image: bytes) -> Item:
        """An image as it is to be treated; what warms members up never waited, and nothing is tried on it."""
        if item.error is not None or not item.queued_ns:
            return item
        trials = tuple(trial.name for trial in self._trials if trial.takes(image, item.by))
        # Who asks is nobody's business further on, but that a cache may go by the key's name.
        by = Caller(name=item.by.name) if item.by.name else ANYONE
        return replace(item, trials=trials, by=by) if trials or item.by is not ANYONE else item

    def _look(self, sent: Sequence[Item], places: Sequence[int], answer: Batch[Sequence[Answer]]) -> dict[int, Seen]:
        """Count and remember answers; what came of each image that somebody sent, by its position."""
        seen: dict[int, Seen] = {}
        for row, told in zip(answer.live, answer.payload, strict=True):
            item, origin = answer.items[row], sent[places[row]]
            if not origin.queued_ns:
                continue
            seen[places[row]] = here = Seen.of(item, told, self._canaries)
            for trial in self._trials:
                if (index := here.members.get(trial.name)) is not None:
                    version = item.versions.get(trial.name)
                    trial.voted(trial.name in item.trials, version, index == here.index)
            if self._book is not None:
                self._book.remember(request_id(origin), origin.place, here, origin.by.name)
        return seen

    def remembers(self, request: str, place: int, key: str = "") -> bool:
        """Whether the answer to an image of a key's request is remembered here."""
        return self._book is not None and self._book.remembers(request, place, key)

    def is_class(self, label: str | int) -> bool:
        """Whether a label is the name of a class, or its index."""
        return self._book is not None and self._book.is_class(label)

    def label(self, request: str, label: str | int, place: int = 0, key: str = "") -> None:
        """Take an image's true label.

        Args:
            request: the id of its request.
            label: the class' name, or its index.
            place: its position among the images of the request.
            key: the name of the API key that the request showed; empty if it showed none.

        Raises:
            UnknownLabel: it is no class.
            UnknownRequest: the answer is not, or no longer, remembered; as no answer is where no labels are taken.
            AlreadyLabelled: it has a label.
        """
        if self._book is None:
            raise no_labels()
        seen = self._book.take(request, label, place, key)
        for shadow in self._shadows:
            shadow.learn(seen)

    @property
    def takes_labels(self) -> bool:
        """Whether labels are taken."""
        return self._book is not None

    def told(self) -> RolloutStats:
        """What was counted."""
        return RolloutStats(
            {trial.name: trial.told() for trial in self._trials},
            {shadow.name: shadow.told() for shadow in self._shadows},
            None if self._book is None else self._book.told(),
        )


@contextmanager
def logged() -> Iterator[None]:
    """The answers are there, whatever becomes of what is told of them."""
    try:
        yield
    except Exception:
        logger.exception("what is tried can't be told of")


def request_id(item: Item) -> str:
    """What a request is known by: its own id, or if it has none its trace's."""
    return next((item.by.headers[name] for name in REQUEST_IDS if item.by.headers.get(name)), item.trace_id)

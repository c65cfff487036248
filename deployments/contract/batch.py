"""What travels on an edge of the graph: a payload with one row per image that has not failed, and the images' items."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from msgspec.structs import replace

from deployments.contract import clock
from deployments.contract.cpu_accounting import METER
from deployments.contract.errors import DeadlineExceeded, EnsembleError, InferenceFailed
from deployments.contract.item import (
    FROM_SENDER,
    INGRESS_ONLY,
    MAX_TRACED_LENGTH,
    PROCESS,
    TRACE_ID,
    AttributeValue,
    Item,
    Note,
    Step,
)
from deployments.contract.payload import Deferred, Images, Probabilities, byte_size, gather, take
from ensemble_serving.answer import Version

logger = logging.getLogger("ray.serve")

DEADLINE_HINT = "the deadline passed before the image was classified; allow more time or send fewer at once"
# Trace ids in a line of a log.
MOST_TRACES = 16
NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}
NO_ERRORS: Mapping[int, EnsembleError] = {}
NO_SCORES: Probabilities = np.empty((0, 0), np.float32)

P = TypeVar("P", covariant=True)
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """A payload and its images. Nodes make new ones: two members may hold the same batch at the same time.

    Attributes:
        payload: a row for each item without an error, in the items' order.
        items: every image that entered the graph, failed ones included.
    """

    payload: P
    items: tuple[Item, ...]

    @property
    def live(self) -> list[int]:
        """The position in `items` of each payload row."""
        return [position for position, item in enumerate(self.items) if item.error is None]

    @property
    def notes(self) -> list[Note]:
        """What the nodes noted of their work on the batch, each note once, though every image of the batch has it."""
        return list({step.note.key: step.note for item in self.items for step in item.steps}.values())

    @property
    def trace_ids(self) -> list[str]:
        """The trace ids of the images that have not failed, each once."""
        return list(dict.fromkeys(self.items[position].trace_parent[TRACE_ID] for position in self.live))

    @property
    def traces(self) -> str:
        """The trace ids of the images that have not failed, for a line of a log; of many the first."""
        ids = self.trace_ids
        more = f" and {len(ids) - MOST_TRACES} more" if len(ids) > MOST_TRACES else ""
        return f"traces {', '.join(ids[:MOST_TRACES])}{more}"

    def fail(self, errors: Mapping[int, EnsembleError]) -> Batch[P]:
        """Return the batch with these errors, by position; an image that has failed already keeps its first."""
        live = self.live
        kept = [row for row, position in enumerate(live) if position not in errors]
        if len(kept) == len(live):
            return self
        items = tuple(
            replace(item, error=errors[position]) if position in errors and item.error is None else item
            for position, item in enumerate(self.items)
        )
        return Batch(take(self.payload, kept), items)

    def outbound(self) -> Batch[P]:
        """Return the batch as it is sent to a node in another process: without the fields that its sender keeps."""
        return Batch(self.payload, tuple(replace(item, steps=(), **INGRESS_ONLY) for item in self.items))

    def after(self, before: Batch[Any]) -> Batch[P]:
        """Return this batch, which a node made of `before.outbound()`, with the fields that only the sender changes."""
        pairs = zip(before.items, self.items, strict=True)
        return Batch(
            self.payload,
            tuple(
                replace(now, steps=(*then.steps, *now.steps), **{name: getattr(then, name) for name in FROM_SENDER})
                for then, now in pairs
            ),
        )

    def split(self, positions: Sequence[int]) -> Batch[P]:
        """Return the batch of some of the images, by position, in that order."""
        row_of = {position: row for row, position in enumerate(self.live)}
        rows = [row_of[position] for position in positions if position in row_of]
        return Batch(take(self.payload, rows), tuple(self.items[position] for position in positions))

    @classmethod
    def join(cls, parts: Sequence[tuple[Sequence[int], Self]]) -> Self:
        """Join parts to one batch: each part's images go to its positions, which together are 0 to their number."""
        if len(parts) == 1 and list(parts[0][0]) == list(range(len(parts[0][1].items))):
            return parts[0][1]
        items: dict[int, Item] = {}
        for positions, part in parts:
            items.update(zip(positions, part.items, strict=True))
        whole = tuple(items[position] for position in range(len(items)))
        row_of = {position: row for row, position in enumerate(i for i, item in enumerate(whole) if item.error is None)}
        rows = [([row_of[positions[i]] for i in part.live], part.payload) for positions, part in parts]
        return cls(gather(rows, len(row_of)), whole)


async def made(batch: Batch[Images | Deferred]) -> Batch[Images]:
    """Return a batch for a member; its pixels are made now if they were deferred."""
    payload = batch.payload
    return await payload.make(batch) if isinstance(payload, Deferred) else Batch(payload, batch.items)


class Work(Generic[P]):
    """A node's work on a batch, from when it is made; images whose deadline has passed by then take no part in it.

    Attributes:
        start_ns: when it began, nanoseconds since the epoch.
        payload: the rows to work on.
        others_ns: CPU time that other processes took for the work, nanoseconds.
    """

    def __init__(self, node: str, batch: Batch[P]) -> None:
        """Begin what a trace calls `node`."""
        self._node = node
        self.start_ns = clock.now_ns()
        self._metered = any([item.metered for item in batch.items])
        # While nobody wants to know what work takes, nothing of the meter runs.
        self._span = METER.begin(self._metered) if self._metered or METER.is_on else None
        self._before, self.others_ns = batch, 0
        deadlines = ((at, item.deadline) for at, item in enumerate(batch.items) if item.deadline is not None)
        late = [at for at, deadline in deadlines if deadline * 1e9 <= self.start_ns]
        self.batch = batch.fail(dict.fromkeys(late, DeadlineExceeded(DEADLINE_HINT))) if late else batch
        self.payload = self.batch.payload

    @contextmanager
    def elsewhere(self, threads: int = 0) -> Iterator[None]:
        """Meter `threads` other threads for this work during the block, while the event loop works for others."""
        span = self._span
        if span is None:
            METER.unmetered += threads
        else:
            METER.leave(span, threads)
        try:
            yield
        finally:
            if span is None:
                METER.unmetered -= threads
            else:
                METER.come_back(span, threads)

    def done(
        self,
        payload: Q,
        changes: Callable[[int], Mapping[str, Any]] | None = None,
        *,
        errors: Mapping[int, EnsembleError] = NO_ERRORS,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        end_ns: int | None = None,
        span: str = "",
    ) -> Batch[Q]:
        """Return the batch after the work.

        Args:
            payload: its output, a row for each row worked on that has no error.
            changes: gives the fields of the item of a row of the output that change.
            errors: what went wrong, by the row worked on.
            attributes: for the note of it.
            end_ns: when it was done, nanoseconds since the epoch; default: now.
            span: see `Note`.
        """
        attributes = {**attributes, "ensemble.batch.size": len(self._before.live)}
        if self._span is not None:
            attributes |= self._taken(self._span.end(), payload)
        note = Note(self._node, self.start_ns, end_ns or clock.now_ns(), attributes, PROCESS, span)
        step = Step(note)
        items, row, kept = list(self._before.items), 0, 0
        for position, item in enumerate(items):
            if item.error is not None:
                continue
            error = self.batch.items[position].error
            if error is None:
                error = errors.get(row)
                row += 1
            if error is None:
                more = changes(kept) if changes is not None else {}
                items[position] = replace(item, steps=(*item.steps, step), **more)
                kept += 1
            else:
                failed = Step(note, (error.code, error.message[:MAX_TRACED_LENGTH]))
                items[position] = replace(item, error=error, steps=(*item.steps, failed))
        return Batch(payload, tuple(items))

    def _taken(self, own_ns: float, payload: object) -> dict[str, AttributeValue]:
        """Return the CPU time and the bytes of the work, if an image is metered."""
        if not self._metered:
            return {}
        sizes = {"in": byte_size(self._before.payload), "out": byte_size(payload)}
        known = {f"ensemble.bytes_{way}": size for way, size in sizes.items() if size is not None}
        return {"ensemble.cpu_ms": (own_ns + self.others_ns) / 1e6, **known}


def predicted(
    work: Work[Any],
    member: str,
    scores: Probabilities,
    versions: Sequence[Version],
    hint: str = "",
    *,
    began_ns: int | None = None,
    **noted: Any,
) -> Batch[Probabilities]:
    """Return the batch after a member has predicted; an image whose scores are not finite fails alone.

    There is a row of scores, float32 [N,C], and the version of the model that computed it for each row worked on. The
    log gets the hint, what the cause of scores that are not finite may be; `noted` is for `Work.done`. The wait until
    inference began at `began_ns`, nanoseconds since the epoch, and the time since are noted, too.
    """
    if began_ns is not None:
        end_ns = noted.setdefault("end_ns", clock.now_ns())
        waited, took = (began_ns - work.start_ns) / 1e6, (end_ns - began_ns) / 1e6
        durations = {"ensemble.queue_wait_ms": waited, "ensemble.inference_ms": took}
        noted["attributes"] = {**noted.get("attributes", NO_ATTRIBUTES), **durations}
    finite = np.isfinite(scores).all(axis=1)
    invalid = np.flatnonzero(~finite).tolist()
    if invalid:
        message = "member %r answered no probabilities for %d images%s; %s"
        ids = {"trace_ids": work.batch.trace_ids}
        logger.error(message, member, len(invalid), hint, work.batch.traces, extra=ids)
        scores, versions = scores[finite], [versions[row] for row in np.flatnonzero(finite).tolist()]
        noted["errors"] = dict.fromkeys(invalid, InferenceFailed(f"member {member!r} answered no probabilities"))
    answered = [{"versions": {member: version}} for version in versions]
    return work.done(scores, answered.__getitem__, **noted)


def failed(work: Work[Any], error: EnsembleError, **noted: Any) -> Batch[Probabilities]:
    """Return the batch after a member has failed on every image; `noted` as for `Work.done`."""
    return work.done(NO_SCORES, errors=dict.fromkeys(range(len(work.payload)), error), **noted)


def crashed(work: Work[Any], member: str, **noted: Any) -> Batch[Probabilities]:
    """Return the batch after a member has raised; called while that is handled, so that the log gets the cause."""
    shape, ids = work.payload.shape, {"trace_ids": work.batch.trace_ids}
    logger.exception("member %r failed on pixels of shape %s; %s", member, shape, work.batch.traces, extra=ids)
    return failed(work, InferenceFailed(f"member {member!r} failed; the server's log has the cause"), **noted)

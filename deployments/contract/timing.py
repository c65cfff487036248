"""Where an image's time went, by what the nodes noted."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from deployments.contract.item import Step

QUEUE = "queue"
# Digits behind the point: microseconds.
DIGITS = 3


class Timing(msgspec.Struct, frozen=True):
    """One stage of an image's way through the graph."""

    stage: Annotated[str, Meta(description="what was done, as a trace calls it, such as `decode`")]
    start_ms: Annotated[float, Meta(description="when it began, ms since the image began to wait for its batch")]
    duration_ms: Annotated[float, Meta(description="how long it took, ms")]


class Way(NamedTuple):
    """An image's way through the graph.

    Attributes:
        queued_ns: when it began to wait for its batch, nanoseconds since the epoch.
        left_ns: when the batch left.
        steps: the nodes that worked on it, in order.
    """

    queued_ns: int
    left_ns: int
    steps: tuple[Step, ...]

    def timings(self) -> tuple[Timing, ...]:
        """Its stages in order: the wait, and each node's work."""
        stages = [(QUEUE, self.queued_ns, self.left_ns)]
        stages += [(step.note.node, step.note.start_ns, step.note.end_ns) for step in self.steps]
        return tuple(
            Timing(stage, round((start - self.queued_ns) / 1e6, DIGITS), round((end - start) / 1e6, DIGITS))
            for stage, start, end in stages
        )

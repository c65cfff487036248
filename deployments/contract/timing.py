"""The time that an image spent in each stage, by the notes of the nodes."""

from __future__ import annotations

from typing import NamedTuple

from deployments.contract.item import Step
from ensemble_serving.answer import Timing

QUEUE = "queue"
# Decimal places of milliseconds.
DIGITS = 3


class Timeline(NamedTuple):
    """The timeline of an image.

    Attributes:
        queued_ns: when it began to wait for its batch, nanoseconds since the epoch.
        left_ns: when its batch left the queue.
        steps: the nodes that worked on it, in order.
    """

    queued_ns: int
    left_ns: int
    steps: tuple[Step, ...]

    def timings(self) -> tuple[Timing, ...]:
        """List the stages in order: the wait, and the work of each node."""
        stages = [(QUEUE, self.queued_ns, self.left_ns)]
        stages += [(step.note.node, step.note.start_ns, step.note.end_ns) for step in self.steps]
        return tuple(
            Timing(stage, round((start - self.queued_ns) / 1e6, DIGITS), round((end - start) / 1e6, DIGITS))
            for stage, start, end in stages
        )

"""What one image keeps on its way through the graph; frozen, because two members may hold it at the same time."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import replace

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError
from deployments.contract.image_probe import ImageProbe
from deployments.contract.options import Options
from ensemble_serving.answer import Timing, Version

AttributeValue = str | int | float
PROCESS = socket.gethostname(), os.getpid()
# What a member notes of how it computes.
THREADS, STREAMS = "ensemble.threads", "ensemble.streams"
# Characters of an error's message in a trace: it may quote what a client sent.
MAX_TRACED_LENGTH = 200
# The W3C trace id in a `traceparent`, 32 hexadecimal digits.
TRACE_ID = slice(3, 35)
# The stage before a batch leaves, and the decimal places of a stage's milliseconds.
QUEUE, DIGITS = "queue", 3
# Fields of an `Item` that are not sent to nodes in other processes, by what stands for them there.
INGRESS_ONLY: Mapping[str, Any] = {"caller": ANYONE, "position": 0, "waits_for_replica": True}
# Fields that are sent, and that a node in another process may read but not change.
FROM_SENDER = ("notes", "extras", *INGRESS_ONLY)


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a node notes of its work on a batch, for traces and metrics; every image of the batch has it, or its equal.

    Attributes:
        node: what it did, such as `predict resnet`.
        start_ns: when it began, by `contract.clock`.
        end_ns: when it was done.
        attributes: further facts, by OpenTelemetry's names.
        process: the host and the process id that it ran in.
        span: the id of its span, 16 hexadecimal digits, where another server was told it; else any will do.
    """

    node: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    process: tuple[str, int]
    span: str = ""

    @property
    def key(self) -> tuple[str, int, tuple[str, int]]:
        """Equal notes have equal keys, and others have other keys."""
        return self.node, self.start_ns, self.process


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One image's part in a node's work.

    Attributes:
        note: what the node notes of it.
        failure: the code and the beginning of the message of the error that the image has had since; None for none.
    """

    note: Note
    failure: tuple[str, str] | None = None


class Timeline(NamedTuple):
    """The timeline of an image.

    Attributes:
        queued_ns: when it began to wait for its batch, by `contract.clock`.
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


class MemberPrediction(msgspec.Struct, frozen=True, array_like=True):
    """A member's most probable class of an image.

    Attributes:
        row: the member's probability of every class, float32 in memory; empty unless the caller asks for members.
        without: the most probable class of the other members together, if it is another one than the ensemble's; else,
            and for a member that answers by itself, None.
    """

    index: int
    probability: float
    row: bytes = b""
    without: int | None = None


class ItemNote(msgspec.Struct, frozen=True):
    """A feature's note on an image: each feature has subclasses of its own, and an image has one note of a class.

    Notes travel with the image. In another process `Item.note` restores the note's class.

    Attributes:
        decides: whether members may predict otherwise because of it. It then is a part of the key of kept predictions.
        is_lasting: whether the predictions may be kept; false if the next image alike may be predicted otherwise.
    """

    decides: ClassVar[bool] = False
    is_lasting: ClassVar[bool] = True

    def variant(self, member: str) -> str:
        """Name the variant of a member that answers; empty for the usual one."""
        return ""

    def merge(self, copies: Sequence[Self]) -> Self:
        """Merge the notes that the image has after each member's work into one."""
        return self


N = TypeVar("N", bound=ItemNote)


def name_of(kind: type) -> str:
    """Return the name of a class that no other class has; an image has a note under the name of its class."""
    return f"{kind.__module__}:{kind.__qualname__}"


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One image's request.

    Attributes:
        trace_parent: the W3C `traceparent` of the request.
        deadline: by `contract.clock`, seconds; None for no limit.
        options: what the caller asked for.
        queued_ns: when it began to wait for a batch, by `contract.clock`; 0 if it did not.
        probe: what the image declares, read once, where it comes in; None where nobody has read it.
        image_size: width and height of the image, pixels; the transformer sets it.
        warning: a fault of the image's file; empty for none; the transformer sets it, too.
        versions: the model version of each member that answered.
        missing: the error's code of each member that did not answer; the predictions lack these members.
        predictions: the most probable class of each member that answered; the combiner sets it.
        error: why it failed; None as long as it has not, and then a row of the payload belongs to it.
        steps: the nodes that worked on it, in order.
        notes: the features' notes, by the name of the note's class; see `note`.
        extras: fields that features add to the answer, by name: fields of `Classification`, or others.
        metered: whether the nodes note what their work on it takes.
        caller: who sent the request; one of `INGRESS_ONLY`, as the next two.
        position: its position among the images of its request.
        waits_for_replica: whether it waits for a node that has no replica now; an edge raises `NoReplica` for a batch
            in which no image waits.
    """

    trace_parent: str = ""
    deadline: float | None = None
    options: Options = Options()
    queued_ns: int = 0
    probe: ImageProbe | None = None
    image_size: tuple[int, int] | None = None
    warning: str = ""
    versions: Mapping[str, Version] = {}
    missing: Mapping[str, str] = {}
    predictions: Mapping[str, MemberPrediction] = {}
    error: EnsembleError | None = None
    steps: tuple[Step, ...] = ()
    notes: Mapping[str, Any] = {}
    extras: Mapping[str, Any] = {}
    metered: bool = False
    caller: Caller = ANYONE
    position: int = 0
    waits_for_replica: bool = True

    @property
    def request(self) -> int:
        """A number of the request in the process that received it; requests of one trace have different ones."""
        return self.queued_ns

    def note(self, kind: type[N]) -> N | None:
        """Return the note of a class; None if there is none."""
        found = self.notes.get(name_of(kind))
        return found if found is None or isinstance(found, kind) else msgspec.convert(found, kind)

    def with_note(self, note: ItemNote, **extras: Any) -> Item:
        """Return the image with a note, in place of an earlier note of its class, and with fields for its answer."""
        return replace(
            self,
            notes={**self.notes, name_of(type(note)): note},
            extras={**self.extras, **extras} if extras else self.extras,
        )

    @property
    def deciding(self) -> dict[str, ItemNote]:
        """The notes because of which members may predict otherwise, by name."""
        return {name: note for name, note in self.notes.items() if isinstance(note, ItemNote) and note.decides}

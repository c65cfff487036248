"""What travels on an edge of the graph: a payload with one row per live request, and what each request keeps."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from graph.errors import DeadlineExceeded, EnsembleError

Pixels = NDArray[np.uint8]
Probabilities = NDArray[np.float32]

AttributeValue = str | int | float
# Characters of an error's message in a trace: it may quote what a client sent.
MOST_TOLD = 200
NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}
PROCESS = socket.gethostname(), os.getpid()
DEADLINE_HINT = "the deadline passed before the image was classified; allow more time or send fewer at once"

P = TypeVar("P", bound="Sequence[object] | NDArray[np.generic]")
Q = TypeVar("Q", bound="Sequence[object] | NDArray[np.generic]")


@dataclass(slots=True)
class Request:
    """What one image keeps on its way through the graph.

    Attributes:
        trace_parent: the W3C `traceparent` of the request.
        deadline: seconds since the epoch (the graph may span machines, so no monotonic clock); None for no limit.
        top_k: how many classes the answer lists; None for the labeler's default.
        members: whether the answer lists each member's own most probable class.
        probabilities: whether the answer carries the probability of every class.
        votes: each member's most probable class, (index, probability); the combiner sets it.
        image_size: width and height of the image, pixels; the transformer sets it.
    """

    trace_parent: str
    deadline: float | None = None
    top_k: int | None = None
    members: bool = False
    probabilities: bool = False
    votes: dict[str, tuple[int, float]] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None


@dataclass(slots=True)
class Timing:
    """What a node notes of its work on a batch, for the traces.

    Attributes:
        node: what it did, such as `predict resnet`.
        start_ns: when it began, nanoseconds since the epoch.
        end_ns: when it was done.
        failed: the requests that had an error by then, by position: its code and the beginning of its message.
        attributes: what else is worth knowing, by OpenTelemetry's names.
        process: the host and the process id that it runs in.
    """

    node: str
    start_ns: int
    end_ns: int
    failed: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    process: tuple[str, int] = PROCESS


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """A payload and its requests. Nodes make new ones: two members may hold the same batch at the same time.

    Attributes:
        payload: one row per request without an error, in the requests' order.
        requests: every request that entered the graph, failed ones included.
        errors: why a request failed, by its position in `requests`; no payload row belongs to it any more.
        versions: the model version of each member that has worked on the batch.
        timings: which node worked when.
    """

    payload: P
    requests: list[Request]
    errors: dict[int, EnsembleError] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)

    @property
    def live(self) -> list[int]:
        """The position in `requests` of each payload row."""
        return [position for position in range(len(self.requests)) if position not in self.errors]

    def advance(
        self,
        node: str,
        start_ns: int,
        payload: Q,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        end_ns: int | None = None,
    ) -> Batch[Q]:
        """The batch after a node's work, from `start_ns` to `end_ns` (None: now); its payload is the output."""
        failed = {position: (error.code, error.message[:MOST_TOLD]) for position, error in self.errors.items()}
        timing = Timing(node, start_ns, end_ns or time.time_ns(), failed, attributes)
        return Batch(payload, self.requests, self.errors, self.versions, [*self.timings, timing])

    def fail(self, errors: dict[int, EnsembleError]) -> Batch[P]:
        """The batch without the requests that failed: `errors` by their position in `requests`."""
        if not errors:
            return self
        kept = [row for row, position in enumerate(self.live) if position not in errors]
        rows: Any = self.payload[kept] if isinstance(self.payload, np.ndarray) else [self.payload[row] for row in kept]
        return Batch(rows, self.requests, {**errors, **self.errors}, self.versions, self.timings)

    def unexpired(self) -> Batch[P]:
        """The batch without the requests whose deadline has passed; those get `DeadlineExceeded`."""
        now = time.time()
        deadlines = ((position, self.requests[position].deadline) for position in self.live)
        late = [position for position, deadline in deadlines if deadline is not None and deadline <= now]
        return self.fail({position: DeadlineExceeded(DEADLINE_HINT) for position in late})


@dataclass(frozen=True, slots=True)
class ClassProbability:
    """One class of an answer."""

    label: str
    index: int
    probability: float


@dataclass(frozen=True, slots=True)
class Classification:
    """The answer for one image; its fields are those of the JSON answer.

    Attributes:
        label: the most probable class.
        index: its index.
        probability: its combined probability.
        top: the `top_k` most probable classes, descending.
        members: each member's most probable class, if asked for.
        model_versions: the version of each member that answered.
        trace_id: the W3C trace id of the request, 32 hexadecimal digits.
        probabilities: the combined probability of every class, float32 [C], if asked for; not part of the JSON.
    """

    label: str
    index: int
    probability: float
    top: tuple[ClassProbability, ...]
    members: dict[str, ClassProbability] | None
    model_versions: dict[str, int]
    trace_id: str
    probabilities: Probabilities | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The JSON answer."""
        answer: dict[str, Any] = {**_json(self.label, self.index, self.probability)}
        answer["top"] = [_json(item.label, item.index, item.probability) for item in self.top]
        if self.members is not None:
            members = self.members.items()
            answer["members"] = {name: _json(m.label, m.index, m.probability) for name, m in members}
        answer["model_versions"] = self.model_versions
        answer["trace_id"] = self.trace_id
        return answer


def _json(label: str, index: int, probability: float) -> dict[str, str | int | float]:
    return {"label": label, "index": index, "probability": round(probability, 6)}

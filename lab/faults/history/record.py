"""A history: requests and answers of clients, and the faults of the server meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# An image is classified; a true label is sent for an answer; the same label is sent again, at the end.
Kind = Literal["image", "label", "audit"]


@dataclass(frozen=True)
class Record:
    """A request and its answer. Times are seconds of one clock.

    Attributes:
        kind: see `Kind`.
        subject: the image's name; of a label, the id of the request that it is for.
        start: when the client sent the request.
        end: when the answer had come, or the client gave up.
        status: of HTTP; 0 if there was no answer.
        answer: the JSON body.
        user: the value of the canary's key.
        sent_id: the request's id.
        answered_id: the id in the answer's headers.
    """

    kind: Kind
    subject: str
    start: float
    end: float
    status: int
    answer: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    sent_id: str = ""
    answered_id: str = ""

    @property
    def code(self) -> str:
        """The error's code; empty for none."""
        error = self.answer.get("error", {})
        return str(error.get("code", "")) if isinstance(error, Mapping) else ""

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each member that answered."""
        return self.answer.get("model_versions", {}) if self.status == 200 else {}

    @property
    def predictions(self) -> Mapping[str, list[float]]:
        """Each member's probabilities in the order of the classes; an answer has them in the order of its own `top`."""
        order = [each["index"] for each in self.answer["top"]]
        members = self.answer.get("members", {})
        return {
            name: [p for _, p in sorted(zip(order, member["probabilities"], strict=True))]
            for name, member in members.items()
        }

    @property
    def is_hit(self) -> bool:
        """Whether a cache had the answer."""
        return bool((self.answer.get("cache") or {}).get("hit"))

    def overlaps(self, start: float, end: float) -> bool:
        """Tell whether the request was under way at some time of an interval."""
        return self.start <= end and start <= self.end


@dataclass(frozen=True)
class InForce:
    """A member's version, and the time in which the version may answer."""

    member: str
    version: int
    start: float = float("-inf")
    end: float = float("inf")


@dataclass(frozen=True)
class Away:
    """A process that was killed or replaced, from then until all answers were whole again."""

    part: str
    start: float
    end: float


@dataclass(frozen=True)
class History:
    """What happened.

    Attributes:
        records: of all clients, in the order of their starts.
        in_force: which versions may answer when.
        away: which processes were away when.
        bound: images that the server admits at a time.
        ttl_s: of a cached answer, seconds.
        canaries: the canary's version, by its member.
    """

    records: tuple[Record, ...]
    in_force: tuple[InForce, ...]
    away: tuple[Away, ...] = ()
    bound: int = 256
    ttl_s: float = 600.0
    canaries: Mapping[str, int] = field(default_factory=dict)

"""Histories: what clients asked and got, and the checker of answers that were not possible.

A rule yields the records that contradict each other, two at most. The checker must also find five planted faults.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from lab.faults.stage import Away, InForce

# An image is classified; a true label is sent for an answer; the same label is sent again, at the end.
Kind = Literal["image", "label", "audit"]


@dataclass(frozen=True)
class Record:
    """A request and its answer. Times are seconds of one clock."""

    kind: Kind
    # The image's name; of a label, the id of the request that it is for.
    subject: str
    # The value of the canary's key, and the request's id.
    user: str = ""
    sent_id: str = ""
    # When the client sent the request, and when the answer had come, or the client gave up.
    start: float = 0.0
    end: float = 0.0
    # 0 if there was no answer; its JSON body, and the id in its headers.
    status: int = 0
    answer: Mapping[str, Any] = field(default_factory=dict)
    answered_id: str = ""

    @property
    def code(self) -> str:
        """The error's code; empty for none."""
        error = self.answer.get("error")
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
    def is_answer(self) -> bool:
        """Whether an image was answered."""
        return self.kind == "image" and self.status == 200

    @property
    def is_hit(self) -> bool:
        """Whether a cache had the answer."""
        return bool((self.answer.get("cache") or {}).get("hit"))

    def overlaps(self, start: float, end: float) -> bool:
        """Tell whether the request was under way at some time of an interval."""
        return self.start <= end and start <= self.end

    def is_within(self, spans: Iterable[InForce | Away]) -> bool:
        """Tell whether the request was under way at some time of any of the spans."""
        return any(self.overlaps(span.start, span.end) for span in spans)


@dataclass(frozen=True)
class History:
    """The records in the order of their starts, the versions in force, and the processes that were away."""

    records: tuple[Record, ...]
    in_force: tuple[InForce, ...]
    away: tuple[Away, ...] = ()
    # Images that the server admits at a time; the seconds that an answer stays in the cache.
    bound: int = 256
    ttl_s: float = 600.0
    # The canary's version, by its member.
    canaries: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def answers(self) -> list[Record]:
        """The records of images that were answered."""
        return [each for each in self.records if each.is_answer]


# Predictions for one image differ by less between batches of different sizes.
TOLERANCE = 0.05
# The age of a cached answer is rounded, and counts from a moment within the first request.
AGE_SLACK_S = 1.0


class Violation(NamedTuple):
    """An impossible answer: the rule, and the records that show it."""

    rule: str
    why: str
    records: tuple[Record, ...]


# What is not possible in a history, and the records that show it.
Found = Iterator[tuple[str, tuple[Record, ...]]]


def version(history: History) -> Found:
    """Find answers of a version that was not in force at any time of the request."""
    for each in history.answers:
        for member, number in each.versions.items():
            spans = [span for span in history.in_force if (span.member, span.version) == (member, number)]
            if not each.is_within(spans):
                yield f"version {number} of {member} was not in force", (each,)


def same_answer(history: History) -> Found:
    """Find two predictions of one member's version, or two labels of the same versions, that differ for one image."""
    predictions: dict[tuple[object, ...], Record] = {}
    labels: dict[tuple[object, ...], Record] = {}
    for each in history.answers:
        for member, prediction in each.predictions.items():
            other = predictions.setdefault((each.subject, member, each.versions.get(member)), each)
            if np.abs(np.subtract(prediction, other.predictions[member])).max() > TOLERANCE:
                yield f"two predictions of {member} for image {each.subject}", (other, each)
        other = labels.setdefault((each.subject, *sorted(each.versions.items())), each)
        if other.answer["label"] != each.answer["label"]:
            yield f"two labels of the same versions for image {each.subject}", (other, each)


def own_answer(history: History) -> Found:
    """Find answers that carry another request's id."""
    for each in history.records:
        if each.answered_id and each.sent_id and each.answered_id != each.sent_id:
            yield f"the answer has the id {each.answered_id}, not {each.sent_id}", (each,)


def cache(history: History) -> Found:
    """Find cached answers that are too old, or that no request can have stored."""
    stored: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for each in history.answers:
        if not each.is_hit:
            stored[each.subject, *sorted(each.versions.items())].append(each)
    for each in filter(lambda each: each.is_hit, history.answers):
        age = each.answer["cache"]["age_s"]
        earliest, latest = each.start - age - AGE_SLACK_S, each.end - age + AGE_SLACK_S
        sources = stored[each.subject, *sorted(each.versions.items())]
        if age > history.ttl_s + AGE_SLACK_S or not any(one.overlaps(earliest, latest) for one in sources):
            yield f"no request stored this answer {age} s before", (each,)


def feedback(history: History) -> Found:
    """Find labels that were accepted, and that the server did not have at the end."""
    accepted = {each.subject: each for each in history.records if each.kind == "label" and each.status == 200}
    for audit in history.records:
        label = accepted.get(audit.subject) if audit.kind == "audit" else None
        if label is None or audit.code == "already_labelled" or audit.status == 0:
            continue
        if not any(gone.part == "Ingress" and gone.end >= label.start for gone in history.away):
            yield f"an accepted label is gone: {audit.status} {audit.code}", (label, audit)


def canary(history: History) -> Found:
    """Find users who got the canary, then the stable version, and then the canary again: a rollback has no return."""
    for member, number in history.canaries.items():
        users: dict[str, list[Record]] = defaultdict(list)
        for each in history.answers:
            if member in each.versions:
                users[each.user].append(each)
        for user, records in users.items():
            given = [each for each in records if each.versions[member] == number]
            others = [each for each in records if each.versions[member] != number]
            left = [each for each in others if given and each.start > given[0].end]
            first = min(left, key=lambda each: each.end, default=None)
            for each in given:
                if first is not None and each.start > first.end:
                    yield f"user {user} got both versions of {member}", (first, each)


def refusal(history: History) -> Found:
    """Find refusals below the bound, and failures while nothing was away."""
    images = [each for each in history.records if each.kind == "image"]
    for each in history.records:
        if each.kind == "audit" or 200 <= each.status < 300:
            continue
        if each.code == "overloaded":
            # A request counts for each moment of the refused one: this is the most that can have been in flight.
            if sum(other is not each and other.overlaps(each.start, each.end) for other in images) < history.bound:
                yield "refused below the bound", (each,)
        elif not each.is_within(history.away):
            yield f"failed while nothing was away: {each.status} {each.code}", (each,)


def missing(history: History) -> Found:
    """Find answers without a member that was there all the time."""
    for each in history.answers:
        for member in each.answer.get("missing") or ():
            if not each.is_within(gone for gone in history.away if gone.part == member):
                yield f"{member} is missing, and was there", (each,)


RULES: tuple[tuple[str, Callable[[History], Found]], ...] = (
    ("version", version),
    ("answer", same_answer),
    ("answer", own_answer),
    ("cache", cache),
    ("feedback", feedback),
    ("canary", canary),
    ("refusal", refusal),
    ("missing", missing),
)


def violations(history: History) -> list[Violation]:
    """Return every answer of a history that was not possible."""
    return [Violation(name, why, records) for name, rule in RULES for why, records in rule(history)]


# Changes a record so that it breaks a rule; None where that is not possible.
Plant = Callable[[History, Record], Record | None]
NEVER = 99


def _with(record: Record, **answer: Any) -> Record:
    return replace(record, answer={**record.answer, **answer})


def neighbour(history: History, one: Record) -> Record | None:
    """Give a request the answer to another image, sent at about the same time."""
    for other in history.answers:
        near = other.overlaps(one.start - 1, one.end + 1) and other.versions == one.versions
        if one.is_answer and near and other.subject != one.subject and _differ(one, other):
            return replace(one, answer={**other.answer, "cache": one.answer.get("cache")})
    return None


def _differ(one: Record, other: Record) -> bool:
    theirs = other.predictions
    shared = [(values, theirs[name]) for name, values in one.predictions.items() if name in theirs]
    return any(np.abs(np.subtract(*pair)).max() > TOLERANCE for pair in shared)


def stale(history: History, one: Record) -> Record | None:
    """Let a cached answer be older than any request that stored it."""
    age_s = one.end - history.records[0].start + 60
    return _with(one, cache={"hit": True, "age_s": age_s}) if one.is_answer and one.is_hit else None


def undeployed(_: History, one: Record) -> Record | None:
    """Let an answer come from a version that nobody deployed."""
    return _with(one, model_versions={**one.versions, next(iter(one.versions)): NEVER}) if one.is_answer else None


def lost(history: History, one: Record) -> Record | None:
    """Lose a label after its 200, though no ingress was away since: the same label is accepted once more."""
    since = max((gone.end for gone in history.away if gone.part == "Ingress"), default=float("-inf"))
    if one.kind == "audit" and one.code == "already_labelled":
        labels = (each for each in history.records if each.kind == "label" and each.subject == one.subject)
        if any(each.start > since for each in labels):
            return replace(one, status=200, answer={"accepted": 1})
    return None


def double_canary(history: History, one: Record) -> Record | None:
    """Let a user get the other version between two answers of the canary."""
    for member, number in history.canaries.items():
        given = [each for each in history.answers if (each.user, each.versions.get(member)) == (one.user, number)]
        between = any(each.end < one.start for each in given) and any(each.start > one.end for each in given)
        if one in given and between:
            stable = next(span.version for span in history.in_force if span.version != number)
            return _with(one, model_versions={**one.versions, member: stable})
    return None


# By name: the fault, and the rule that it breaks.
PLANTED: dict[str, tuple[Plant, str]] = {
    "neighbour": (neighbour, "answer"),
    "stale": (stale, "cache"),
    "undeployed": (undeployed, "version"),
    "lost": (lost, "feedback"),
    "double canary": (double_canary, "canary"),
}


def planted(history: History, plant: Plant, seed: int) -> History | None:
    """Return the history with a fault in it; None where the history has nothing to plant the fault into."""
    for old in random.Random(seed).sample(history.records, len(history.records)):
        if (new := plant(history, old)) is not None:
            return replace(history, records=tuple(new if each is old else each for each in history.records))
    return None

"""Finds answers that were not possible, also five faults that are planted into a history.

Each rule yields the records that contradict each other, two at most.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lab.faults.history.record import History, Record

# Predictions for one image differ by less between batches of different sizes.
TOLERANCE = 0.05
# The age of a cached answer is rounded, and counts from a moment within the first request.
AGE_SLACK_S = 1.0


@dataclass(frozen=True)
class Violation:
    """An impossible answer: the rule, and the records that show it."""

    rule: str
    why: str
    records: tuple[Record, ...]


Rule = Callable[[History], Iterator[Violation]]


def _images(history: History) -> list[Record]:
    return [each for each in history.records if each.kind == "image" and each.status == 200]


def version(history: History) -> Iterator[Violation]:
    """Find answers of a version that was not in force at any time of the request."""
    for each in _images(history):
        for member, number in each.versions.items():
            spans = [span for span in history.in_force if (span.member, span.version) == (member, number)]
            if not any(each.overlaps(span.start, span.end) for span in spans):
                yield Violation("version", f"version {number} of {member} was not in force", (each,))


def same_answer(history: History) -> Iterator[Violation]:
    """Find two predictions of one member's version, or two labels of the same versions, that differ for one image."""
    first: dict[tuple[object, ...], tuple[Record, np.ndarray]] = {}
    for each in _images(history):
        for member, prediction in each.predictions.items():
            key: tuple[object, ...] = each.subject, member, each.versions.get(member)
            other, known = first.setdefault(key, (each, np.array(prediction)))
            if np.abs(prediction - known).max() > TOLERANCE:
                yield Violation("answer", f"two predictions of {member} for image {each.subject}", (other, each))
        key = each.subject, *sorted(each.versions.items())
        other, _ = first.setdefault(key, (each, np.empty(0)))
        if other.answer["label"] != each.answer["label"]:
            yield Violation("answer", f"two labels of the same versions for image {each.subject}", (other, each))


def own_answer(history: History) -> Iterator[Violation]:
    """Find answers that carry another request's id."""
    for each in history.records:
        if each.answered_id and each.sent_id and each.answered_id != each.sent_id:
            yield Violation("answer", f"the answer has the id {each.answered_id}, not {each.sent_id}", (each,))


def cache(history: History) -> Iterator[Violation]:
    """Find cached answers that are too old, or that no request can have stored."""
    stored: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for each in _images(history):
        if not each.is_hit:
            stored[each.subject, *sorted(each.versions.items())].append(each)
    for each in _images(history):
        if not each.is_hit:
            continue
        age = each.answer["cache"]["age_s"]
        earliest, latest = each.start - age - AGE_SLACK_S, each.end - age + AGE_SLACK_S
        sources = stored[each.subject, *sorted(each.versions.items())]
        if age > history.ttl_s + AGE_SLACK_S or not any(one.overlaps(earliest, latest) for one in sources):
            yield Violation("cache", f"no request stored this answer {age} s before", (each,))


def feedback(history: History) -> Iterator[Violation]:
    """Find labels that were accepted, and that the server did not have at the end."""
    accepted = {each.subject: each for each in history.records if each.kind == "label" and each.status == 200}
    for audit in history.records:
        label = accepted.get(audit.subject) if audit.kind == "audit" else None
        if label is None or audit.code == "already_labelled" or audit.status == 0:
            continue
        if not any(gone.part == "Ingress" and gone.end >= label.start for gone in history.away):
            yield Violation("feedback", f"an accepted label is gone: {audit.status} {audit.code}", (label, audit))


def canary(history: History) -> Iterator[Violation]:
    """Find users who got the canary, then the stable version, and then the canary again: a rollback has no return."""
    for member, number in history.canaries.items():
        users: dict[str, list[Record]] = defaultdict(list)
        for each in _images(history):
            if member in each.versions:
                users[each.user].append(each)
        for records in users.values():
            began = next((each for each in records if each.versions[member] == number), None)
            left = [each for each in records if began and each.start > began.end and each.versions[member] != number]
            left = sorted(left, key=lambda each: each.end)[:1]
            for each in records:
                if left and each.start > left[0].end and each.versions[member] == number:
                    yield Violation("canary", f"user {each.user} got both versions of {member}", (left[0], each))


def refusal(history: History) -> Iterator[Violation]:
    """Find refusals below the bound, and failures while nothing was away."""
    images = [each for each in history.records if each.kind == "image"]
    for each in history.records:
        if each.kind == "audit" or 200 <= each.status < 300:
            continue
        if each.code == "overloaded":
            # A request counts for each moment of the refused one: this is the most that can have been in flight.
            if sum(other is not each and other.overlaps(each.start, each.end) for other in images) < history.bound:
                yield Violation("refusal", "refused below the bound", (each,))
        elif not any(each.overlaps(gone.start, gone.end) for gone in history.away):
            yield Violation("refusal", f"failed while nothing was away: {each.status} {each.code}", (each,))


def missing(history: History) -> Iterator[Violation]:
    """Find answers without a member that was there all the time."""
    for each in _images(history):
        for member in each.answer.get("missing") or ():
            spans = [gone for gone in history.away if gone.part == member]
            if not any(each.overlaps(gone.start, gone.end) for gone in spans):
                yield Violation("missing", f"{member} is missing, and was there", (each,))


RULES: tuple[Rule, ...] = (version, same_answer, own_answer, cache, feedback, canary, refusal, missing)


def violations(history: History) -> list[Violation]:
    """Return every answer of a history that was not possible."""
    return [found for rule in RULES for found in rule(history)]


# Yields records that a fault can change, each with its changed form.
Plant = Callable[[History, Sequence[Record]], Iterator[tuple[Record, Record]]]
NEVER = 99


def _with(record: Record, **answer: Any) -> Record:
    return replace(record, answer={**record.answer, **answer})


def neighbour(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Give a request the answer to another image, sent at about the same time."""
    for one in answers:
        for other in answers:
            near = other.overlaps(one.start - 1, one.end + 1) and other.versions == one.versions
            if near and other.subject != one.subject and _differ(one, other):
                yield one, replace(one, answer={**other.answer, "cache": one.answer.get("cache")})


def _differ(one: Record, other: Record) -> bool:
    theirs = other.predictions
    shared = [(values, theirs[name]) for name, values in one.predictions.items() if name in theirs]
    return any(np.abs(np.subtract(*pair)).max() > TOLERANCE for pair in shared)


def stale(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a cached answer be older than any request that stored it."""
    for one in answers:
        if one.is_hit:
            yield one, _with(one, cache={"hit": True, "age_s": one.end - history.records[0].start + 60})


def undeployed(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let an answer come from a version that nobody deployed."""
    for one in answers:
        yield one, _with(one, model_versions={**one.versions, next(iter(one.versions)): NEVER})


def lost(history: History, _: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Lose a label after its 200, though no ingress was away since: the same label is accepted once more."""
    since = max((gone.end for gone in history.away if gone.part == "Ingress"), default=float("-inf"))
    kept = {each.subject for each in history.records if each.kind == "label" and each.start > since}
    for one in history.records:
        if one.kind == "audit" and one.code == "already_labelled" and one.subject in kept:
            yield one, replace(one, status=200, answer={"accepted": 1})


def double_canary(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a user get the other version between two answers of the canary."""
    for member, number in history.canaries.items():
        given = [each for each in answers if each.versions.get(member) == number]
        stable = next(span.version for span in history.in_force if span.version != number)
        for one in given:
            theirs = [each for each in given if each.user == one.user]
            if any(each.end < one.start for each in theirs) and any(each.start > one.end for each in theirs):
                yield one, _with(one, model_versions={**one.versions, member: stable})


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
    answers = [each for each in history.records if each.kind == "image" and each.status == 200]
    random.Random(seed).shuffle(answers)
    for old, new in plant(history, answers):
        return replace(history, records=tuple(new if each is old else each for each in history.records))
    return None
